"""What nodes train on: a data set handed out in ranges, or cut into parts."""
