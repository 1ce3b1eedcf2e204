"""An example: devices get the changes of a keyspace, by posts to an HTTP service such as FCM's."""
