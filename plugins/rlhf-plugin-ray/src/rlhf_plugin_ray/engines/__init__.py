"""The processes that generate, the router in front of them, and the delivery of new weights to them."""
