{{ config(materialized="incremental", incremental_strategy="merge", unique_key="id") }}

-- Each order as its newest event says. Later runs read the events that the table does not have yet.
select
    id,
    max_by(state, event) as state,
    max_by(pieces, event) as pieces,
    max(event) as event
from {{ ref("order_events") }}
{% if is_incremental() %}
where event > (select max(event) from {{ this }})
{% endif %}
group by id
