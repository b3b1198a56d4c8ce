"""A Spark driver that stays warm between the processes that use it.

Starting a driver takes ten seconds, attaching to one that runs about half a second. `keeper` is the
process that starts a driver, serves it and ends it; `client.attach` gives a process a session of
its own on it; `address` says where the driver of a configuration is found.

What a process has to itself: its session (settings, temporary views, functions), its jobs, its end
of py4j with the objects and callbacks behind it, and Python workers that run its code. What all
processes of a driver share is what Spark keeps for each application: the catalog, global temporary
views, cached tables, files added to the context, and the UI.
"""
