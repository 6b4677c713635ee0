"""All cases of all frameworks."""

from . import (
    agno_cases,
    instructor_cases,
    langchain_cases,
    openai_agents_cases,
    pydantic_ai_cases,
    smolagents_cases,
)

CASES = (
    *openai_agents_cases.CASES,
    *pydantic_ai_cases.CASES,
    *langchain_cases.CASES,
    *instructor_cases.CASES,
    *agno_cases.CASES,
    *smolagents_cases.CASES,
)
