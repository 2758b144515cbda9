"""Says what was found, to people and to machines; decides nothing."""
