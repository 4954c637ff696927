"""The commands, one file a subject: parsing and printing only."""
