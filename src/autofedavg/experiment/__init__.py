"""One row of a study, wired to a task, a method and a federation."""
