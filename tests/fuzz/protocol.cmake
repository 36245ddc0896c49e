warproll_fuzz(codec LINK warproll_protocol)
