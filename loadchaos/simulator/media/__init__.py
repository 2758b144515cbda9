"""Images and videos as the simulator takes them."""
