"""The atlas: geometries of networks that people use, each in a small file that can be compared."""
