"""The report, served while runs go on."""
