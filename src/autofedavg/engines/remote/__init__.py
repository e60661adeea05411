"""Jobs on real engines, without the engine: the job itself, the server's side, a site's side."""
