"""What a user asks for: ``DrafterRun.spec``."""

from __future__ import annotations

import enum
from typing import Annotated, Any

from pydantic import Field

from drafter_operator.api.base import (
    PRESERVED,
    ApiModel,
    Decimal,
    IntOrQuantity,
    ObjectName,
    Quantity,
    RelativePath,
    Share,
    validations,
)

DEFAULT_JOB_IMAGE = "ghcr.io/drafters-dev/drafter-jobs:0.2.0"
DEFAULT_SGLANG_IMAGE = "lmsysorg/sglang:v0.5.23"
MAXIMUM_DEPTH = 256
BASELINE = "baseline"

OPERATOR_ARGUMENTS = (
    "--model-path",
    "--host",
    "--port",
    "--served-model-name",
    "--enable-metrics",
    "--dtype",
    "--device",
    "--tp-size",
    "--tensor-parallel-size",
    "--max-running-requests",
    "--revision",
    "--trust-remote-code",
    "--speculative-algorithm",
    "--speculative-draft-model-path",
    "--speculative-num-steps",
    "--speculative-eagle-topk",
    "--speculative-num-draft-tokens",
)
"""Arguments of ``sglang.launch_server`` that the operator derives from the spec."""


def _leaves_arguments_to_operator() -> tuple[str, str]:
    """Return the rule that keeps a user from setting an operator's argument a second time.

    The engine's parser takes the start of a name for the name, and the last value wins.
    """
    names = ", ".join(f"'{name}'" for name in OPERATOR_ARGUMENTS)
    return (
        f"self.all(x, !x.startsWith('--') || ![{names}].exists(o, o.startsWith(x.split('=')[0])))",
        "the operator itself sets " + ", ".join(OPERATOR_ARGUMENTS),
    )


class EnvironmentVariable(ApiModel):
    """An environment variable of a Pod."""

    name: str = Field(min_length=1, max_length=256, description="Name.")
    value: str | None = Field(default=None, max_length=32_768, description="Value.")
    value_from: dict[str, Any] | None = Field(
        default=None,
        description="Source of the value, as in a Pod: `secretKeyRef`, `configMapKeyRef`, …",
        json_schema_extra=PRESERVED,
    )


class Toleration(ApiModel):
    """A toleration, as in a Pod."""

    key: str | None = Field(default=None, max_length=317, description="Key of the taint.")
    operator: str | None = Field(
        default=None,
        max_length=32,
        description="Exists or Equal; Equal if unset.",
    )
    value: str | None = Field(default=None, max_length=63, description="Value of the taint.")
    effect: str | None = Field(
        default=None,
        max_length=32,
        description="NoSchedule, PreferNoSchedule or NoExecute; all of them if unset.",
    )
    toleration_seconds: int | None = Field(
        default=None, description="Time an evicting taint is tolerated; for ever if unset."
    )


class Resources(ApiModel):
    """Resources of a container."""

    requests: dict[str, IntOrQuantity] = Field(
        default_factory=dict, description="What the container is promised."
    )
    limits: dict[str, IntOrQuantity] = Field(
        default_factory=dict, description="What the container may use at most."
    )


class PodSettings(ApiModel):
    """Settings of one kind of Pod, beside what the operator decides."""

    resources: Resources = Field(
        default_factory=Resources,
        description="Resources of the container. GPUs are added by the operator.",
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict, description="Labels a node must have."
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=32, description="Taints of nodes that are tolerated."
    )
    env: list[EnvironmentVariable] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        description=(
            "Environment variables; they win over the operator's own. Take secrets such as"
            " HF_TOKEN from a Secret with `valueFrom`."
        ),
    )
    service_account_name: ObjectName | None = Field(
        default=None, description="ServiceAccount of the Pod; the namespace's default if unset."
    )
    runtime_class_name: ObjectName | None = Field(
        default=None, description="RuntimeClass of the Pod."
    )
    priority_class_name: ObjectName | None = Field(
        default=None, description="PriorityClass of the Pod."
    )


class JobPodSettings(PodSettings):
    """Settings of a job's Pod."""

    image: str = Field(
        default=DEFAULT_JOB_IMAGE, min_length=1, description="Image with the drafter jobs."
    )


class Target(ApiModel):
    """The large model the drafter speculates for."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": validations(
            (
                "has(self.path) != has(self.hubId)",
                "set exactly one of path (a directory in a volume) and hubId (a Hugging Face id)",
            ),
            ("!has(self.claimName) || has(self.path)", "claimName needs path"),
            ("!has(self.revision) || has(self.hubId)", "revision needs hubId"),
        )
    }
    path: RelativePath | None = Field(
        default=None,
        description=(
            "Directory of the model inside the claim `claimName`, or inside the run's storage"
            " when that is unset."
        ),
    )
    claim_name: ObjectName | None = Field(
        default=None,
        description="PersistentVolumeClaim that holds the model; mounted read-only.",
    )
    hub_id: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?$",
        max_length=256,
        description="Hugging Face id of the model.",
    )
    revision: str | None = Field(
        default=None, max_length=128, description="Commit or branch of `hubId`."
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Model name in the OpenAI API; the run's name if unset.",
    )
    trust_remote_code: bool = Field(
        default=False, description="Run Python code shipped with the model. Off unless asked."
    )


class ClaimTemplate(ApiModel):
    """A claim the operator makes for the run; it outlives the run."""

    storage_class_name: ObjectName | None = Field(
        default=None, description="StorageClass of the claim."
    )
    size: Quantity = Field(description="Requested size, such as 100Gi.")
    access_mode: str = Field(
        default="ReadWriteOnce",
        description="Access mode. Several nodes need ReadWriteMany.",
        json_schema_extra={"enum": ["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]},
    )


class Storage(ApiModel):
    """Where dataset, hidden states, checkpoints and drafter live."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": validations(
            (
                "has(self.claimName) != has(self.claimTemplate)",
                "set exactly one of claimName (an existing claim) and claimTemplate",
            ),
        )
    }
    claim_name: ObjectName | None = Field(default=None, description="An existing claim.")
    claim_template: ClaimTemplate | None = Field(
        default=None, description="A claim named after the run, made once and never deleted."
    )


class ConfigMapFile(ApiModel):
    """A file inside a ConfigMap."""

    name: ObjectName = Field(description="Name of the ConfigMap.")
    key: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[-._a-zA-Z0-9]+$",
        description="Key that holds the JSONL text.",
    )


class HubDataset(ApiModel):
    """A dataset on the Hugging Face hub."""

    id: str = Field(
        pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?$", max_length=256, description="Dataset id."
    )
    split: str = Field(default="train", min_length=1, max_length=128, description="Split.")
    field: str = Field(
        default="prompt",
        min_length=1,
        max_length=128,
        description="Column with a prompt (text) or a conversation (list of messages).",
    )


class Prompts(ApiModel):
    """A source of prompts: JSONL rows with `id` and `prompt` or `messages`."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": validations(
            (
                "[has(self.path), has(self.configMap), has(self.dataset)].filter(x, x).size() == 1",
                "set exactly one of path, configMap and dataset",
            ),
        )
    }
    path: RelativePath | None = Field(
        default=None, description="JSONL file inside the run's storage."
    )
    config_map: ConfigMapFile | None = Field(default=None, description="A file in a ConfigMap.")
    dataset: HubDataset | None = Field(default=None, description="A dataset on a hub.")


class BenchmarkPrompts(ApiModel):
    """A source of benchmark prompts, in the same form."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": validations(
            ("has(self.path) != has(self.configMap)", "set exactly one of path and configMap"),
        )
    }
    path: RelativePath | None = Field(
        default=None, description="JSONL file inside the run's storage."
    )
    config_map: ConfigMapFile | None = Field(default=None, description="A file in a ConfigMap.")


class Dtype(enum.StrEnum):
    """Element types."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class Data(ApiModel):
    """How the training corpus is made."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": validations(
            (
                "double(self.validationShare) > 0.0 && double(self.validationShare) < 1.0",
                "data.validationShare must be above 0 and below 1: training needs both parts",
            ),
            (
                "self.maximumNewTokens < self.maximumLength",
                "maximumNewTokens must be below maximumLength: the prompt needs room too",
            ),
        )
    }
    prompts: Prompts = Field(description="Where the prompts come from.")
    limit: int = Field(
        default=0, ge=0, le=100_000_000, description="Prompts to use; 0 uses them all."
    )
    regenerate_responses: bool = Field(
        default=True,
        description="Let the target write the responses. A drafter must imitate its target.",
    )
    maximum_length: int = Field(
        default=4096, ge=16, le=1_048_576, description="Longest sample in tokens."
    )
    maximum_new_tokens: int = Field(
        default=1024, ge=1, le=131_072, description="Longest generated response in tokens."
    )
    validation_share: Share = Field(
        default="0.05", description="Share of the samples kept for validation and benchmark."
    )
    chat_template_arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of the chat template, such as enable_thinking.",
        json_schema_extra=PRESERVED,
    )
    batch_size: int = Field(default=64, ge=1, le=4096, description="Prompts generated together.")
    dtype: Dtype = Field(
        default=Dtype.BFLOAT16, description="Element type in which the target writes responses."
    )
    gpus: int = Field(default=1, ge=0, le=64, description="GPUs of the Pod; 0 runs on the CPU.")
    pod: JobPodSettings = Field(default_factory=JobPodSettings, description="Pod of Prepare.")


class HiddenStatesEngine(enum.StrEnum):
    """Engines that compute hidden states."""

    TRANSFORMERS = "transformers"


class Retention(enum.StrEnum):
    """What becomes of the hidden states after training."""

    KEEP = "Keep"
    DELETE_AFTER_TRAINING = "DeleteAfterTraining"


class HiddenStates(ApiModel):
    """How the target's hidden states are extracted."""

    engine: HiddenStatesEngine = Field(
        default=HiddenStatesEngine.TRANSFORMERS, description="Engine that runs the target."
    )
    auxiliary_layers: list[Annotated[int, Field(ge=0, le=1024)]] = Field(
        default_factory=list,
        max_length=8,
        description=(
            "Layers whose input is captured. Empty takes 2, n/2 and n-3 of the target's n layers."
        ),
        json_schema_extra={
            **validations(
                (
                    "self.all(x, self.exists_one(y, y == x))",
                    "auxiliary layers must be distinct",
                ),
            )
        },
    )
    dtype: Dtype = Field(default=Dtype.BFLOAT16, description="Element type of the files.")
    batch_tokens: int = Field(
        default=8192, ge=16, le=1_048_576, description="Tokens of one forward pass."
    )
    retention: Retention = Field(
        default=Retention.KEEP, description="Keep the files, or delete them after training."
    )
    gpus: int = Field(default=1, ge=0, le=64, description="GPUs of the Pod; 0 runs on the CPU.")
    pod: JobPodSettings = Field(default_factory=JobPodSettings, description="Pod of Extract.")


class Trainer(enum.StrEnum):
    """Trainers of drafters."""

    SPECULATORS = "speculators"


class Optimizer(enum.StrEnum):
    """Optimizers the trainer offers."""

    ADAMW = "adamw"
    MUON = "muon"


class Training(ApiModel):
    """How the drafter is trained."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": validations(
            ("double(self.learningRate) > 0.0", "learningRate must be above 0"),
        )
    }
    trainer: Trainer = Field(default=Trainer.SPECULATORS, description="Trainer.")
    nodes: int = Field(default=1, ge=1, le=64, description="Nodes; several make an Indexed Job.")
    gpus_per_node: int = Field(
        default=1, ge=0, le=64, description="GPUs of each node; 0 trains on the CPU."
    )
    processes_per_node: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="torchrun processes of each node; one for each GPU if unset.",
    )
    epochs: int = Field(default=5, ge=1, le=1000, description="Epochs.")
    ttt_steps: int = Field(default=5, ge=1, le=16, description="Training-time-test steps.")
    packed_sequence_length: int = Field(
        default=8192, ge=64, le=1_048_576, description="Tokens of one packed batch."
    )
    minimum_packed_sequence_length: int = Field(
        default=1024,
        ge=64,
        le=1_048_576,
        description=(
            "After an out-of-memory the packed length is halved, but not below this value."
        ),
    )
    learning_rate: Decimal = Field(default="1e-4", description="Learning rate.")
    optimizer: Optimizer = Field(default=Optimizer.ADAMW, description="Optimizer.")
    draft_vocabulary_size: int = Field(
        default=32_000,
        ge=16,
        le=1_000_000,
        description="Tokens the drafter can propose: the most frequent in the corpus.",
    )
    minimum_first_step_accuracy: Share = Field(
        default="0", description="Fail when the validation accuracy of step 0 ends below this."
    )
    seed: int = Field(default=0, ge=0, le=2_147_483_647, description="Seed of the run.")
    pod: JobPodSettings = Field(default_factory=JobPodSettings, description="Pod of Train.")


class ServingEngine(enum.StrEnum):
    """Engines that serve the candidates."""

    SGLANG = "sglang"


class Strategy(enum.StrEnum):
    """How many candidates run at a time."""

    SEQUENTIAL = "Sequential"
    PARALLEL = "Parallel"


class Serving(ApiModel):
    """How each candidate is served."""

    engine: ServingEngine = Field(default=ServingEngine.SGLANG, description="Engine.")
    image: str = Field(
        default=DEFAULT_SGLANG_IMAGE, min_length=1, description="Image of the engine."
    )
    depths: list[Annotated[int, Field(ge=2, le=MAXIMUM_DEPTH)]] = Field(
        default_factory=lambda: [16, 10, 5],
        min_length=1,
        max_length=16,
        description=(
            "Draft tokens of each candidate (SGLang's --speculative-num-draft-tokens);"
            " the root token included, so at least 2."
        ),
        json_schema_extra={
            "default": [16, 10, 5],
            **validations(
                ("self.all(x, self.exists_one(y, y == x))", "depths must be distinct"),
            ),
        },
    )
    baseline: bool = Field(
        default=True, description="Also serve the target without speculation, to compare with."
    )
    tensor_parallel_size: int = Field(
        default=1, ge=0, le=64, description="GPUs of each server; 0 serves on the CPU."
    )
    maximum_running_requests: int = Field(
        default=48, ge=1, le=4096, description="The same limit for every candidate."
    )
    dtype: Dtype = Field(default=Dtype.BFLOAT16, description="Element type of the weights.")
    extra_arguments: list[Annotated[str, Field(max_length=1024)]] = Field(
        default_factory=list,
        max_length=128,
        description="More arguments of `sglang.launch_server`, for every candidate.",
        json_schema_extra={
            "default": [],
            **validations(
                _leaves_arguments_to_operator(),
            ),
        },
    )
    strategy: Strategy = Field(
        default=Strategy.SEQUENTIAL,
        description="One candidate at a time, or all at once.",
    )
    shared_memory_size: Quantity = Field(default="16Gi", description="Size of /dev/shm.")
    startup_timeout_seconds: int = Field(
        default=3600, ge=30, le=86_400, description="Time a server may take to become ready."
    )
    termination_grace_period_seconds: int = Field(
        default=120, ge=1, le=86_400, description="Time running requests get at the end."
    )
    pod: PodSettings = Field(default_factory=PodSettings, description="Pod of each server.")


class Benchmark(ApiModel):
    """The load every candidate gets."""

    prompts: BenchmarkPrompts | None = Field(
        default=None, description="Held-out prompts; the validation share of the data if unset."
    )
    concurrencies: list[Annotated[int, Field(ge=1, le=4096)]] = Field(
        default_factory=lambda: [1, 8, 32],
        min_length=1,
        max_length=8,
        description="Requests in flight, one load after the other.",
        json_schema_extra={
            "default": [1, 8, 32],
            **validations(
                ("self.all(x, self.exists_one(y, y == x))", "concurrencies must be distinct"),
            ),
        },
    )
    requests: int = Field(default=64, ge=1, le=100_000, description="Requests of each concurrency.")
    maximum_new_tokens: int = Field(
        default=256, ge=1, le=131_072, description="Longest response in tokens."
    )
    warm_up_requests: int = Field(default=2, ge=0, le=1000, description="Requests not measured.")
    objective_concurrency: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description=(
            "The concurrency whose output tokens per second decide; the lowest one if unset."
        ),
    )
    minimum_acceptance_length: Decimal = Field(
        default="1.2", description="A candidate below this is not eligible."
    )
    pod: JobPodSettings = Field(default_factory=JobPodSettings, description="Pod of Benchmark.")


class PromotionMode(enum.StrEnum):
    """Who promotes the winner."""

    AUTO = "Auto"
    MANUAL = "Manual"
    NEVER = "Never"


class Promotion(ApiModel):
    """When and how the winner is promoted."""

    mode: PromotionMode = Field(
        default=PromotionMode.AUTO,
        description=(
            "Auto promotes the winner. Manual waits until `promotion.candidate` names one."
            " Never only reports."
        ),
    )
    candidate: str | None = Field(
        default=None,
        pattern=r"^depth-[0-9]+$",
        max_length=16,
        description="The candidate a user promotes in mode Manual.",
    )
    minimum_speedup: Decimal = Field(
        default="1.05",
        description="Throughput over the baseline's that a candidate must reach.",
    )


class DrafterRunSpec(ApiModel):
    """Desired state of a drafter run."""

    model_config = ApiModel.model_config | {
        "json_schema_extra": validations(
            (
                "!has(self.benchmark.objectiveConcurrency)"
                " || self.benchmark.objectiveConcurrency in self.benchmark.concurrencies",
                "benchmark.objectiveConcurrency must be one of benchmark.concurrencies",
            ),
            (
                "self.training.minimumPackedSequenceLength <= self.training.packedSequenceLength",
                "training.minimumPackedSequenceLength must not exceed packedSequenceLength",
            ),
            (
                "self.training.nodes == 1 || !has(self.storage.claimTemplate)"
                " || self.storage.claimTemplate.accessMode == 'ReadWriteMany'",
                "training on several nodes needs storage.claimTemplate.accessMode ReadWriteMany",
            ),
            (
                "!has(self.promotion.candidate) || self.serving.depths.exists(d,"
                " 'depth-' + string(d) == self.promotion.candidate)",
                "promotion.candidate must be depth-N for one of serving.depths",
            ),
        )
    }
    suspend: bool = Field(
        default=False, description="Stop running work; false again resumes where it stopped."
    )
    target: Target = Field(description="The model the drafter speculates for.")
    storage: Storage = Field(description="Where the run keeps its files.")
    data: Data = Field(description="The training corpus.")
    hidden_states: HiddenStates = Field(
        default_factory=HiddenStates, description="Extraction of the target's hidden states."
    )
    training: Training = Field(default_factory=Training, description="Training of the drafter.")
    export: JobPodSettings = Field(default_factory=JobPodSettings, description="Pod of Export.")
    serving: Serving = Field(default_factory=Serving, description="Serving of the candidates.")
    benchmark: Benchmark = Field(
        default_factory=Benchmark, description="Load every candidate gets."
    )
    promotion: Promotion = Field(default_factory=Promotion, description="Choice of the winner.")
