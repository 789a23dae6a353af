"""The processes of a hive: replicas, model eviction, reload, the control socket."""
