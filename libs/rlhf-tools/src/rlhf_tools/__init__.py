"""Tools that a policy calls, and a base for environments that offer them.

The names listed here, and modules without a leading underscore, are public.
"""

from typing import TYPE_CHECKING

from rlhf_core.lazy import names_from

if TYPE_CHECKING:
    from .environment import ToolEnvironment
    from .functions import function_tool
    from .limits import ToolLimits
    from .results import ToolError, ToolFailure, ToolResult
    from .session import ToolSession
    from .tool import Tool
    from .toolbox import Toolbox
else:
    # Options of plugins name the limits, so each `rlhf --help` imports this package, but not asyncio.
    __getattr__ = names_from(
        __name__,
        {
            "Tool": "tool",
            "ToolEnvironment": "environment",
            "ToolError": "results",
            "ToolFailure": "results",
            "ToolLimits": "limits",
            "ToolResult": "results",
            "ToolSession": "session",
            "Toolbox": "toolbox",
            "function_tool": "functions",
        },
    )

__all__ = [
    "Tool",
    "ToolEnvironment",
    "ToolError",
    "ToolFailure",
    "ToolLimits",
    "ToolResult",
    "ToolSession",
    "Toolbox",
    "function_tool",
]
