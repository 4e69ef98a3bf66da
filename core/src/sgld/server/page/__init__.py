"""The page to steer a world in a browser: plain static files and the routes that serve them."""
