"""Models of other libraries as networks of ours, one library a file; imported when asked for."""
