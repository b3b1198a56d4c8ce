"""A Spark driver that stays warm between the processes that use it.

Starting a driver takes ten seconds, attaching to one that runs about half a second.

- `keeper`: the process that starts a driver, serves it and ends it.
- `client`: `attach`, which gives this process a session of its own on the driver.
- `address`: the socket at which the driver of a configuration is found.

Each process has its own session (settings, temporary views, functions), its own jobs, its own py4j
connection with the objects and callbacks behind it, and Python workers that run its code. The
processes of a driver share what Spark keeps for each application: the catalog, global temporary
views, cached tables, files added to the context, and the UI.
"""
