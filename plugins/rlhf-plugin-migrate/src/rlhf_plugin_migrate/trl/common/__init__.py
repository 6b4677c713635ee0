"""Keys and rules that several scripts of TRL share."""
