"""Values that stages hand on. Frozen: no stage writes into an earlier result."""

from __future__ import annotations

from intact.results.build_record import BINARY as BINARY
from intact.results.build_record import DEPLOYABLE as DEPLOYABLE
from intact.results.build_record import FORBIDDING as FORBIDDING
from intact.results.build_record import Accuracy as Accuracy
from intact.results.build_record import Application as Application
from intact.results.build_record import Artifact as Artifact
from intact.results.build_record import Build as Build
from intact.results.build_record import Form as Form
from intact.results.build_record import Gate as Gate
from intact.results.build_record import LayerError as LayerError
from intact.results.build_record import Origin as Origin
from intact.results.build_record import QuantizeFigures as QuantizeFigures
from intact.results.build_record import Refusal as Refusal
from intact.results.build_record import RequantizedWeight as RequantizedWeight
from intact.results.build_record import RewriteCheck as RewriteCheck
from intact.results.build_record import RuleCount as RuleCount
from intact.results.build_record import Search as Search
from intact.results.build_record import SearchPoint as SearchPoint
from intact.results.build_record import Sensitivity as Sensitivity
from intact.results.build_record import Stage as Stage
from intact.results.build_record import TaskAccuracy as TaskAccuracy
from intact.results.build_record import TypeCount as TypeCount
from intact.results.build_record import Verdict as Verdict
from intact.results.build_record import Word as Word
from intact.results.build_record import decibels_shown as decibels_shown
from intact.results.grid_plan import BiasPlan as BiasPlan
from intact.results.grid_plan import Conversion as Conversion
from intact.results.grid_plan import PlannedGrid as PlannedGrid
from intact.results.grid_plan import QuantPlan as QuantPlan
from intact.results.grid_plan import Range as Range
from intact.results.grid_plan import WeightPlan as WeightPlan
from intact.results.model_facts import Analysis as Analysis
from intact.results.model_facts import Cost as Cost
from intact.results.model_facts import CostEstimate as CostEstimate
from intact.results.model_facts import InspectedModel as InspectedModel
from intact.results.model_facts import InspectedPort as InspectedPort
from intact.results.model_facts import MappedLayer as MappedLayer
from intact.results.model_facts import NodeFacts as NodeFacts
from intact.results.model_facts import PlacedLayer as PlacedLayer
from intact.results.model_facts import PlacedNode as PlacedNode
from intact.results.model_facts import Placement as Placement
from intact.results.model_facts import Violation as Violation
