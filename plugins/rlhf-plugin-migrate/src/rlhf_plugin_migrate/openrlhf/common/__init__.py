"""Rules and lines of tables that several programs of OpenRLHF share."""
