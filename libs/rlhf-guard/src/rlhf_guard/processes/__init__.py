"""Processes that run the code of users beside a run: started under guard, spoken to in JSON, ended with the run."""
