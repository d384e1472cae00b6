"""Hardware that was not measured, from measurements of other sizes, ranks or clusters."""
