"""Tools that a policy calls, and a base for environments that offer them.

The names listed here, and modules without a leading underscore, are public.
"""

from .environment import ToolEnvironment
from .functions import function_tool
from .limits import ToolLimits
from .results import ToolError, ToolFailure, ToolResult
from .session import ToolSession
from .tool import Tool
from .toolbox import Toolbox

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
