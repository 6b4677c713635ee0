"""Images of a run: where they come from, what is refused, and the store that keeps each once.

Between processes go references (``MediaRef``), never pixels. Modules here know files, limits and places among tokens;
they know no model family and no tokenizer. Pillow is imported where an image is opened.
"""

from .given import is_pillow as is_pillow
from .inspecting import MediaLimits as MediaLimits
from .inspecting import decode as decode
from .loader import ImagesOnUse as ImagesOnUse
from .loader import Intake as Intake
from .loader import MediaLoader as MediaLoader
from .loader import MediaOptions as MediaOptions
from .parts import image_parts as image_parts
from .parts import references_in as references_in
from .problem import MediaProblem as MediaProblem
from .processor_text import ProcessorText as ProcessorText
from .reader import ImageReader as ImageReader
from .reader import without_images as without_images
from .reader import writing_of as writing_of
from .reference import ANY_AREA as ANY_AREA
from .reference import Frame as Frame
from .reference import MediaRef as MediaRef
from .reference import PixelLimits as PixelLimits
from .sample_image import SampleImage as SampleImage
from .sample_image import sample_images as sample_images
from .spans import Expanded as Expanded
from .spans import FrameTokens as FrameTokens
from .spans import ImageTokens as ImageTokens
from .spans import MediaSpan as MediaSpan
from .spans import as_shown as as_shown
from .spans import check_frames as check_frames
from .spans import collapsed as collapsed
from .spans import expanded as expanded
from .spans import seen_together as seen_together
from .store import MediaStore as MediaStore
from .videos import place_in_video as place_in_video
