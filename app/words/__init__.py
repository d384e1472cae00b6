"""What things are called on the screen, how they are defined, sentences made of figures; one file a page."""
