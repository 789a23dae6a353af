"""`skep up NAME`: what a name stands for on machines with and without cards, engines of others,
simulated rigs.
"""

import json
import os
from types import SimpleNamespace

import pytest
from fake_programs import vllm_program
from hive_client import ask, rows_of
from in_process import refused

from api_clients import openai
from commands import environment, running_skep
from skep.catalog.models import checkpoints_of
from skep.config.presets import preset, serve_of
from skep.deploy import resolve
from skep.deploy.resolve import ServeRequest, about_preset, parse_gpus, simulated_serve
from skep.errors import DoesNotFit, SkepError, UserError
from skep.paths import user_paths
from skep.report.terminal import note


def serve_for(request):
    return resolve.serve_for(request, user_paths(os.environ), note)


def test_without_a_card_the_embedded_engine_serves_and_a_named_one_starts(
    programs,
):
    assert serve_for(ServeRequest("smollm2-135m")) is None
    assert serve_for(ServeRequest("mine.gguf")) is None
    serve = serve_for(ServeRequest("org/model", engine="vllm", slots=16, context=4096))
    assert (serve.engine, serve.model, serve.slots, serve.context_tokens) == (
        "vllm",
        "org/model",
        16,
        4096,
    )
    assert serve.options.given == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ServeRequest("qwen3-8b"), "no NVIDIA GPU is here to plan `qwen3-8b` for"),
        (
            ServeRequest("org/model", engine="vllm", quant="awq"),
            "--quant: no NVIDIA GPU is here to plan for",
        ),
        (ServeRequest("smolm2-135"), "smollm2-135m"),
        (ServeRequest("/no/such/folder"), "does not exist"),
    ],
)
def test_what_cannot_be_served_without_a_card_is_one_clear_line(programs, options, message):
    with pytest.raises(UserError) as caught:
        serve_for(options)
    assert message in f"{caught.value.message} {caught.value.hint}"


def test_a_checkpoint_of_the_catalogue_is_served_as_planned(two_3090s):
    serve = serve_for(ServeRequest("Qwen/Qwen3-8B-AWQ"))
    assert (serve.engine, serve.checkpoint) == ("vllm", "Qwen/Qwen3-8B-AWQ")
    assert serve.replicas * serve.options.cards == 2
    assert serve.slots >= 2


def test_a_model_is_served_from_a_checkpoint_that_exists(two_3090s):
    checkpoints = {checkpoint.hub for checkpoint in checkpoints_of("qwen3-8b")}
    assert serve_for(ServeRequest("qwen3-8b")).checkpoint in checkpoints


def test_a_model_of_which_no_checkpoint_is_known_needs_one(two_3090s):
    with pytest.raises(UserError, match="which checkpoint of `llama-2-13b`"):
        serve_for(ServeRequest("llama-2-13b"))


def test_another_checkpoint_of_a_model_is_served_as_told(two_3090s):
    serve = serve_for(ServeRequest("qwen3-8b", checkpoint="org/x-AWQ", quant="awq"))
    assert serve.checkpoint == "org/x-AWQ"


def test_a_checkpoint_for_which_the_cards_have_no_room_ends_with_exit_code_3(two_3090s):
    with pytest.raises(SkepError) as caught:
        serve_for(ServeRequest("deepseek-v3.2", checkpoint="org/deepseek"))
    assert caught.value.exit_code == 3


def test_a_checkpoint_that_nobody_knows_is_served_by_a_named_engine_without_a_plan(
    two_3090s, capsys
):
    assert serve_for(ServeRequest("org/nobody-knows", engine="vllm")).engine == "vllm"
    assert "without a plan" in capsys.readouterr().err


def test_a_checkpoint_that_nobody_knows_is_not_served_without_an_engines_name(two_3090s):
    with pytest.raises(UserError, match="not in the catalogue"):
        serve_for(ServeRequest("org/nobody-knows"))


def test_a_preset_is_served_as_it_is_written_and_says_where_its_figures_do_not_apply(
    two_3090s, capsys
):
    """No plan changes it."""
    serve = serve_for(ServeRequest("qwen3.6-27b-2x3090-replicas"))
    assert (serve.engine, serve.replicas, serve.slots) == ("vllm", 2, 2)
    err = capsys.readouterr().err
    assert "225" in err
    assert "not apply" in err
    with pytest.raises(UserError, match="--tp cannot be combined"):
        serve_for(ServeRequest("qwen3.6-27b-2x3090-replicas", tp=2))
    assert serve_for(ServeRequest("gpt-oss-20b-4090")).engine == "llamacpp"
    assert "warning: measured on rtx-4090, this machine has 2x rtx-3090" in capsys.readouterr().err


def test_a_preset_for_cards_is_not_started_without_any_and_its_figures_do_not_apply(programs):
    with pytest.raises(DoesNotFit, match="needs rtx-3090, this machine has no GPU"):
        serve_for(ServeRequest("qwen3.6-27b-3090-mtp5"))
    stored_preset = preset("gpt-oss-20b-4090", programs / "none")
    sentences = about_preset(stored_preset, serve_of(stored_preset))
    assert any(line.startswith("warning: ") and "rtx-4090" in line for line in sentences)


@pytest.mark.parametrize("text", ["a", "0,", "0;1", "-1", ""])
def test_cards_are_given_by_number(text):
    with pytest.raises(UserError, match="is not a list of GPU numbers"):
        parse_gpus(text)
    assert parse_gpus("0, 2") == (0, 2)


@pytest.mark.parametrize("engine", ["vllmm", "remote", ""])
def test_an_engine_that_nobody_knows_in_the_file_is_one_clear_line(paths, configure, engine):
    configure({"engine": engine})
    assert f"there is no engine `{engine}`" in refused("up")


NO_MEMORY = """
if float(value("--gpu-memory-utilization")) > 0.85:
    print("INFO 11-15 10:00:00 [gpu_model_runner.py:100] Graph capturing started")
    print("ERROR 11-15 10:00:02 [core.py:866] torch.OutOfMemoryError: CUDA out of memory. "
          "Tried to allocate 512 MiB.")
    sys.exit(1)
"""


@pytest.fixture
def vllm(tmp_path):
    program = tmp_path / "vllm"
    program.write_text(vllm_program(NO_MEMORY))
    program.chmod(0o755)
    return program


def started(skep, vllm, *options, check=0):
    return skep(
        "up",
        "org/model",
        "--engine",
        "vllm",
        "--binary",
        vllm,
        "--slots",
        "2",
        "--port",
        "0",
        "--memory-share",
        "0.92",
        *options,
        "-d",
        "--json",
        check=check,
    )


def test_a_dying_engine_falls_back_step_by_step_or_says_cause_and_remedy(skep, vllm):
    done = started(skep, vllm, check=1)
    line = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "out of GPU memory" in line
    assert "lower memory_share from 0.92 to 0." in line
    assert json.loads(skep("ps", "--json").stdout) == []
    url = json.loads(started(skep, vllm, "--fallback").stdout)["url"]
    assert ask(url, model="org/model")[0] == 200
    row = rows_of(skep)["org-model-0"]
    assert row["why"].startswith("fell back: memory_share 0.92 -> 0.")
    assert row["restarts"] == row["why"].count("->") >= 1


def test_an_unknown_flag_of_the_installed_version_or_an_absent_engine_is_said(
    skep, vllm, tmp_path
):
    """Before the start, and with how to get it."""
    serve = f'model = "org/m"\nengine = "vllm"\nbinary = "{vllm}"\nextra = ["--sead", "1"]\n'
    (tmp_path / "skep.toml").write_text(f"[gateway]\nport = 0\n[[serve]]\n{serve}")
    done = skep("up", "-d", check=2)
    assert "does not know the flag `--sead`" in done.stderr
    assert "did you mean `--seed`?" in done.stderr
    done = skep("up", "org/model", "--engine", "vllm", check=2, PATH="/nowhere")
    assert "not installed" in done.stderr
    assert "`skep engine install vllm` installs it" in done.stderr


RIG = (
    "qwen3-8b",
    "--gpu",
    "2x h200",
    "--quant",
    "awq",
    "--replicas",
    2,
    "--slots",
    2,
    "--simulate",
    "--port",
    0,
)


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    """A hive of two simulated cards, once for the tests that look at it."""
    folder = tmp_path_factory.mktemp("rig")
    variables = {**environment(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    with running_skep(variables, folder) as skep:
        started = skep("up", *RIG, "-d", "--json", check=0)
        ready = json.loads(started.stdout)
        yield SimpleNamespace(skep=skep, folder=folder, notes=started.stderr, ready=ready)


@pytest.fixture(scope="module")
def sweep(rig):
    """A sweep over the simulated rig: two levels of four tasks with 24 tokens each."""
    load = (
        "--concurrency",
        "1,4",
        "--runs",
        1,
        "--tasks",
        4,
        "--max-tokens",
        24,
        "--fixed-output",
        "--warm-up",
        "quick",
    )
    return rig.skep("bench", "sweep", "--url", rig.ready["url"], *load, "--json", check=0)


def first_slots(skep, load):
    on_rig = ("--gpu", "rtx-5090", "--simulate", "--dry-run", "--load", load)
    return skep("up", "qwen3.6-27b", *on_rig, check=0).stderr.splitlines()[0]


def test_the_layout_is_planned_for_what_agents_send(skep):
    assert first_slots(skep, "small") != first_slots(skep, "task")


def test_a_load_that_skep_does_not_know_is_refused_by_name(skep):
    done = skep("up", "qwen3-8b", "--gpu", "h200", "--simulate", "--load", "chatter", check=2)
    assert "--load `chatter` is not known" in done.stderr
    assert "known: coding, small, task" in done.stderr


def test_a_rig_that_is_not_here_is_served_without_weights(rig):
    assert "no model runs" in rig.notes
    assert not (rig.folder / "cache").exists()


def test_every_replica_of_a_simulated_rig_is_marked(rig):
    marks = [row["simulated"] for row in rows_of(rig.skep).values() if row["kind"] == "replica"]
    assert marks == [True, True]
    assert rig.skep("ps", check=0).stdout.count("simulated") == 2


@pytest.fixture
def client(rig):
    with openai.OpenAI(base_url=rig.ready["openai_base_url"], api_key="none") as opened:
        yield opened


def test_an_answer_of_a_simulated_rig_says_so_in_its_head_and_its_body(client):
    raw = client.chat.completions.with_raw_response.create(
        model="qwen3-8b", messages=[{"role": "user", "content": "hello"}], max_tokens=5
    )
    assert raw.headers["x-skep-simulated"] == "1"
    assert raw.parse().model_extra["simulated"] is True


def test_the_list_of_models_says_which_rig_is_simulated(client):
    facts = client.models.list().data[0].model_extra["skep"]
    assert facts["simulated"] is True
    assert facts["engine"].startswith("simulated: qwen3-8b AWQ 4-bit")
    assert "2 x TP=1 on 2x h200" in facts["engine"]


def test_a_sweep_of_a_simulated_rig_has_every_token_of_its_levels(sweep):
    levels = json.loads(sweep.stdout)["levels"]
    assert [level["output_tokens"] for level in levels] == [96, 96]


def test_a_sweep_of_a_simulated_rig_is_marked_on_the_terminal_and_in_the_store(rig, sweep):
    (run,) = json.loads(rig.skep("runs", "--json", check=0).stdout)
    assert json.loads(sweep.stdout)["simulated"] is True
    assert run["simulated"] is True
    assert "(simulated)" in sweep.stderr


@pytest.mark.usefixtures("sweep")
def test_the_report_of_a_simulated_rig_says_that_no_model_ran_and_on_which_cards(rig):
    rig.skep("report", "last", "-o", "report.html", check=0)
    page = (rig.folder / "report.html").read_text()
    assert "<h1>qwen3-8b (simulated)</h1>" in page
    assert "No model ran." in page
    assert "2 x TP=1 on 2x h200" in page


def test_a_reload_of_a_simulated_rig_changes_nothing(rig):
    document = json.loads(rig.skep("reload", "--json", check=0).stdout)
    changes = {name: document[name] for name in ("added", "removed", "changed")}
    assert changes == {"added": [], "removed": [], "changed": []}


@pytest.mark.parametrize(
    ("serve_request", "code", "expected", "hint"),
    [
        (
            ServeRequest("qwen3-8b", gpu=("rtx-3099",)),
            2,
            "no GPU is called `rtx-3099`",
            "`rtx-3090`",
        ),
        (
            ServeRequest("qwen-27z", gpu=("h200",)),
            2,
            "no model is called `qwen-27z`",
            "did you mean",
        ),
        (
            ServeRequest("qwen3-8b", gpu=("h200",), engine="x"),
            2,
            "--engine `x` is not known",
            "vllm",
        ),
        (
            ServeRequest("qwen3-8b", gpu=("h200",), quant="x"),
            2,
            "no quantization is called `x`",
            "awq",
        ),
        (
            ServeRequest("qwen3-8b", gpu=("h200",), tp=2),
            2,
            "--tp 2 needs 2 cards",
            "TP x PP x replicas",
        ),
        (
            ServeRequest("qwen3-8b", gpu=("2x rtx-5090",), link="nvlink"),
            2,
            "rtx-5090 has no NVLink",
            "--link pcie",
        ),
        (
            ServeRequest("gemma-4-31b", gpu=("rtx-3060",), quant="bf16"),
            3,
            "largest term is weights",
            "what would fit",
        ),
    ],
    ids=["card", "model", "engine", "quant", "tp", "link", "memory"],
)
def test_what_cannot_be_simulated_is_said_in_one_line(serve_request, code, expected, hint):
    with pytest.raises(UserError) as caught:
        simulated_serve(serve_request, user_paths(os.environ))
    assert caught.value.exit_code == code
    assert expected in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpu", "h200"), "--gpu needs --simulate"),
        (
            ("--simulate", "--gpu", "h200", "--threads", 2),
            "--simulate and --threads contradict each other",
        ),
        (("--simulate",), "no GPU was found on this machine"),
    ],
    ids=["no --simulate", "--threads", "no cards here"],
)
def test_options_that_do_not_go_together_are_refused(skep, tmp_path, options, message):
    """Without --gpu this machine's cards are meant; the PATH has no nvidia-smi to find any."""
    done = skep("up", "qwen3-8b", *options, check=2, PATH=str(tmp_path))
    error, hint = done.stderr.splitlines()
    assert (error, hint[:6]) == (f"error: {message}", "hint: ")


def test_without_a_model_nothing_is_simulated_but_a_small_context_is():
    assert "--simulate needs a model" in refused("up", "--simulate")
    serve_request = ServeRequest("qwen3-8b", gpu=("h200",), context=1024, slots=3)
    model, serve = simulated_serve(serve_request, user_paths(os.environ))
    assert (model, serve["context_tokens"], serve["slots"], serve["replicas"]) == (
        "qwen3-8b",
        1024,
        3,
        1,
    )


EAGER = "qwen2.5-coder-32b-2x3090-nvlink"


def test_a_preset_is_simulated_as_it_is_started_on_its_cards_eager_included():
    notes = []
    model, serve = simulated_serve(ServeRequest(EAGER), user_paths(os.environ), notes.append)
    assert (model, serve["engine"], serve["slots"], serve["replicas"]) == (
        "qwen2.5-coder-32b",
        "simulated",
        4,
        1,
    )
    assert (
        serve["context_tokens"]
        == serve_of(preset(EAGER, user_paths(os.environ).config)).context_tokens
    )
    assert serve["about"].endswith("TP=2 on 2x rtx-3090, as vllm, eager")
    assert any(line.startswith(f"preset {EAGER}: ") for line in notes)
    assert any("does not name its checkpoint" in line for line in notes)


def test_an_eager_preset_is_simulated_slower_than_its_model_with_graphs():
    pinned = ServeRequest(
        "qwen2.5-coder-32b", gpu=("2x rtx-3090",), link="nvlink", engine="vllm", quant="awq", tp=2
    )
    steps = []
    for request in (ServeRequest(EAGER), pinned):
        _, serve = simulated_serve(request, user_paths(os.environ))
        steps.append(json.loads(serve["extra"][1])["step"])
    eager, with_graphs = steps
    assert eager["launch_s"] > 2 * with_graphs["dense_s"]
    assert with_graphs["launch_s"] == 0


def test_a_simulated_preset_takes_other_cards_and_slots_but_no_other_layout():
    serve_request = ServeRequest(EAGER, gpu=("2x rtx-4090",), slots=2)
    _, serve = simulated_serve(serve_request, user_paths(os.environ))
    assert serve["slots"] == 2
    assert "2x rtx-4090" in serve["about"]
    assert "--tp cannot be combined with the preset" in refused(
        "up", EAGER, "--simulate", "--tp", 1
    )
    assert "needs 2 cards (TP=2), `rtx-3090` has 1" in refused(
        "up", EAGER, "--simulate", "--gpu", "rtx-3090", code=3
    )


def test_a_preset_for_more_cards_than_are_here_is_not_shown_as_if_it_could_start(two_3090s):
    for options in ((), ("--dry-run",)):
        message = refused("up", "gemma-4-31b-4x3090", *options, code=3)
        assert message.startswith(
            "the preset `gemma-4-31b-4x3090` needs 4 cards (4x rtx-3090), this machine has "
            "2 cards | "
        )
        assert "--simulate" in message


def test_one_replica_of_a_preset_for_more_cards_can_be_shown_on_fewer(two_3090s):
    serve_request = ServeRequest("qwen3.6-27b-2x3090-replicas", replicas=1)
    assert serve_for(serve_request).replicas == 1


def test_a_preset_is_not_exported_for_other_cards_than_its_own():
    message = refused("export", EAGER, "--gpu", "rtx-3090", "--as", "shell")
    assert message.startswith(f"the preset `{EAGER}` says its cards itself | leave --gpu out")


def test_eager_mode_is_carried_into_the_engine_and_into_the_simulated_rig(two_3090s):
    assert serve_for(ServeRequest("Qwen/Qwen3-8B-AWQ", graphs=False)).options.graphs is False
    assert serve_for(ServeRequest("qwen3.6-27b-2x3090-awq", graphs=False)).options.graphs is False
    serve_request = ServeRequest("qwen3-8b", gpu=("rtx-3090",), engine="vllm", graphs=False)
    assert simulated_serve(serve_request, user_paths(os.environ))[1]["about"].endswith(
        "as vllm, eager"
    )
    assert "--no-graphs: the embedded engine has none" in refused(
        "up", "smollm2-135m", "--no-graphs"
    )


def test_kv_in_ram_is_told_to_the_engine_by_its_own_flag(skep, vllm):
    options = ("--engine", "vllm", "--binary", vllm, "--slots", "2", "--kv-ram", "64")
    done = skep("up", "org/model", *options, "--dry-run")
    assert "--kv-offloading-size 64 --kv-offloading-backend native" in done.stdout


def test_the_embedded_engine_is_told_of_kv_in_ram_in_its_file(skep):
    done = skep("up", "smollm2-135m", "--kv-ram", "1", "--dry-run", check=2)
    assert "write kv_ram under [serve.options]" in done.stderr
