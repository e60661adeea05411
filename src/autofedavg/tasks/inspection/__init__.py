"""Inspection of a data list: comparison of sites, oddities, one page."""
