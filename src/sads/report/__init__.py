"""Reports: one HTML file a result, that people open, explore and send to each other."""
