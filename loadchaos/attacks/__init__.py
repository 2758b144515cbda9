"""SHELF: operations on the server, each with begin, end, undo and the effects it lists."""
