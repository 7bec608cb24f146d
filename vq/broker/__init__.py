"""The broker node: takes, keeps and delivers messages for the partitions of its group."""
