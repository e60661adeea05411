"""A look at a data list: sites side by side, oddities, one page."""
