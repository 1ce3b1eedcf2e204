"""An example: devices are told of changes of a keyspace, by posts to an HTTP service such as FCM's."""
