"""What runs on a measured rank."""
