"""Artifacts on the Hub, which is a server in this process; `huggingface_hub` is the real one."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import huggingface_hub
import pytest
import torch
import transformers as hf

from slimformer import artifact, models
from slimformer.artifact.layout import MASK
from slimformer.artifact.storage.mask_file import MaskFile
from slimformer.bank import MaskBank
from slimformer.errors import ArtifactError, CheckpointError, SlimformerError, UsageError
from slimformer.inference.door import look_up, open_model
from slimformer.integrations.hub import push
from tests import corpus, hub, runs

if TYPE_CHECKING:
    from collections.abc import Iterator

DONE = Path(__file__).parents[1] / "artifacts"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub.FakeHub]:
    with hub.serving(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact and a mask, made with whole paths, as their users type them."""
    folder = tmp_path_factory.mktemp("home-of-somebody")
    corpus.model_folder(folder / "base")
    corpus.data_folder(folder / "reviews")
    flags = ("--max-length", 12, "--quiet")
    done = runs.finetune(folder / "base", "classification", folder / "reviews", folder / "sentiment", *flags)
    assert done.code == 0, done.err
    shutil.copytree(DONE / "mask", folder / "mask")
    return folder


def all_text(files: dict[str, bytes]) -> str:
    return "\n".join(content.decode("utf-8", "replace") for content in files.values())


def test_an_artifact_is_pushed_and_loaded_by_name(server: hub.FakeHub, room: Path) -> None:
    pushed = push(room / "sentiment", "me/sentiment", message="The first one")
    repo = server.repos["me/sentiment"]
    assert pushed.commit == repo.branches["main"]
    assert repo.messages[-1] == "The first one"
    assert not repo.private
    here, there = artifact.load(room / "sentiment"), artifact.load("me/sentiment")
    inputs = here.processor("the film was good", return_tensors="pt")
    assert torch.equal(here.model(**inputs).logits, there.model(**inputs).logits)
    assert artifact.verify(f"me/sentiment@{pushed.commit}").max_difference < 1e-4


def test_nothing_that_is_pushed_tells_where_it_was_made(server: hub.FakeHub, room: Path) -> None:
    before = {path.name: path.read_bytes() for path in (room / "sentiment").iterdir()}
    push(room / "sentiment", "me/sentiment")
    files = server.repos["me/sentiment"].files()
    recorded = json.loads(before["slimformer.json"])["steps"][-1]
    assert recorded["config"]["data"] == str(room / "reviews")  # here it is remembered
    text = all_text(files)
    assert str(room) not in text
    assert room.name not in text
    step = json.loads(files["slimformer.json"])["steps"][-1]
    assert step["config"]["data"] == "…/reviews"
    assert step["config"]["model"] == "…/base"
    assert {path.name: path.read_bytes() for path in (room / "sentiment").iterdir()} == before


def test_a_base_from_the_hub_remembers_how_data_of_the_same_name_are_read(server: hub.FakeHub, room: Path) -> None:
    from slimformer.methods.finetune.config import FinetuneConfig
    from slimformer.methods.origin import read_alike

    push(room / "sentiment", "me/sentiment")
    asked = {"model": "me/sentiment", "task": "classification"}
    same = FinetuneConfig.make({**asked, "data": str(room / "reviews")})
    assert read_alike("me/sentiment", same).max_length == 12
    other = FinetuneConfig.make({**asked, "data": str(room / "base")})
    assert read_alike("me/sentiment", other).max_length is None


def test_a_mask_on_a_base_of_the_hub_finds_it_at_its_commit(server: hub.FakeHub, room: Path, tmp_path: Path) -> None:
    base = server.add("me/base", {path.name: path.read_bytes() for path in (room / "base").iterdir()})
    commit = base.branches["main"]
    flags = ("--task", "classification", "--data", room / "reviews", "--out", tmp_path / "mask", "--max-steps", 2)
    assert runs.run("mask", "--model", "me/base", *flags, "--blocks", "0-", "--quiet").code == 0
    record = MaskFile.read(tmp_path / "mask" / MASK).base
    assert record.source == f"me/base@{commit}"
    recorded = artifact.read_manifest(tmp_path / "mask").base
    assert recorded is not None
    assert (recorded.name, recorded.revision) == ("me/base", commit)
    # Whatever becomes of the branch, the mask is put on the commit it was made from.
    base.commit("main", {**base.files(), "config.json": b"{}"})
    assert push(tmp_path / "mask", "me/mask").notes == ()
    shutil.rmtree(tmp_path / "hub-cache")
    bank = MaskBank()
    bank.add("sentiment", "me/mask")
    assert bank.source == f"me/base@{commit}"
    answers = bank.predict({"sentiment": ["the film was good"]})["sentiment"]
    assert answers[0]["label"] in ("yes", "no")


def test_a_bank_takes_masks_at_a_revision(server: hub.FakeHub, room: Path) -> None:
    first = push(room / "mask", "me/mask", base=DONE / "base").commit
    push(room / "mask", "me/mask", base=DONE / "base", revision="try/second")
    server.repos["me/mask"].commit("main", {"config.json": b"{}"})  # no mask any more
    bank = MaskBank(DONE / "base")
    bank.add("by commit", f"me/mask@{first}")
    bank.add("by branch", "me/mask@try/second")
    text = "the film was good"
    answers = bank.predict({"by commit": [text], "by branch": [text]})
    assert answers["by commit"][0]["label"] == answers["by branch"][0]["label"]
    with pytest.raises(SlimformerError):
        bank.add("by name", "me/mask")
    with pytest.raises(CheckpointError, match="it has no revision `v9`"):
        bank.add("of nothing", "me/mask@v9")


def test_a_mask_whose_base_lay_in_a_folder_asks_for_it(server: hub.FakeHub, room: Path) -> None:
    base = DONE / "base"
    pushed = push(room / "mask", "me/mask", base=base)
    assert "is not on the Hub" in pushed.notes[0]
    with pytest.raises(ArtifactError, match="give its folder with `--base`"):
        artifact.load("me/mask")
    assert artifact.load("me/mask", base=base).manifest.model.storage == "mask"


def test_the_door_opens_a_name_with_a_revision(server: hub.FakeHub, room: Path) -> None:
    first = push(room / "sentiment", "me/sentiment", revision="try/first").commit
    assert "slimformer.json" not in server.repos["me/sentiment"].files("main")
    assert look_up("me/sentiment@try/first").task is not None
    assert open_model(f"me/sentiment@{first}").model.config.num_labels == 2
    done = runs.run("evaluate", "me/sentiment@try/first", "--data", room / "reviews", "--json")
    assert done.json["examples"] > 0
    assert runs.run("predict", "me/sentiment@try/first", "a dull plot").code == 0


def test_a_run_pushes_what_it_made(server: hub.FakeHub, room: Path, tmp_path: Path) -> None:
    flags = ("--push-to-hub", "me/tuned", "--quiet", "--json")
    done = runs.finetune(room / "base", "classification", room / "reviews", tmp_path / "tuned", *flags)
    assert done.json["hub"]["name"] == "me/tuned"
    assert artifact.load("me/tuned").manifest.task is not None
    assert str(tmp_path) not in all_text(server.repos["me/tuned"].files())


def test_merging_pushes_too(server: hub.FakeHub, room: Path, tmp_path: Path) -> None:
    out = tmp_path / "merged"
    done = runs.run(
        "merge", room / "mask", "--base", DONE / "base", "--out", out, "--push-to-hub", "me/merged", "--json"
    )
    assert done.json["hub"]["commit"] == server.repos["me/merged"].branches["main"]


def test_pushing_again_replaces_an_artifact_and_nothing_else(server: hub.FakeHub, room: Path) -> None:
    push(room / "sentiment", "me/shelf")
    server.repos["me/shelf"].commit("main", {**server.repos["me/shelf"].files(), "left.json": b"{}"})
    push(room / "sentiment", "me/shelf")
    assert "left.json" not in server.repos["me/shelf"].files()
    server.add("me/other", {"model.safetensors": b"x"})
    with pytest.raises(ArtifactError, match=r"holds `model\.safetensors` and is no artifact"):
        push(room / "sentiment", "me/other")


def test_a_private_push_is_private_or_refused(server: hub.FakeHub, room: Path) -> None:
    push(room / "sentiment", "me/secret", private=True)
    assert server.repos["me/secret"].private
    server.add("me/open")
    with pytest.raises(ArtifactError, match="`me/open` is public already"):
        push(room / "sentiment", "me/open", private=True)
    assert "slimformer.json" not in server.repos["me/open"].files()


def test_a_changed_artifact_is_not_pushed(server: hub.FakeHub, room: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(room / "sentiment", tmp_path / "changed"))
    (folder / "README.md").write_text("other")
    with pytest.raises(ArtifactError, match=r"README\.md"):
        push(folder, "me/changed")
    assert not server.asked


@pytest.mark.parametrize(
    ("where", "status", "words"),
    [
        ("whoami", 401, "the token is not valid (401)"),
        ("repos/create", 403, "the token may not write there (403)"),
        ("PUT /lfs", 403, "was not pushed"),
        ("/commit/", 500, "nothing of it shows there"),
        ("/commit/", 413, "the Hub answered 413"),
    ],
)
def test_a_push_that_fails_says_what_to_do_and_leaves_nothing(
    server: hub.FakeHub, room: Path, where: str, status: int, words: str
) -> None:
    server.failing = (where, status)
    done = runs.run("push", room / "sentiment", "me/failing")
    done.refused(words)
    assert hub.TOKEN not in done.err
    assert "me/failing" not in server.repos or "slimformer.json" not in server.repos["me/failing"].files()
    server.failing = None
    assert runs.run("push", room / "sentiment", "me/failing").code == 0


def test_a_run_whose_push_failed_keeps_its_result(server: hub.FakeHub, room: Path, tmp_path: Path) -> None:
    server.failing = ("/commit/", 500)
    out = tmp_path / "kept"
    done = runs.finetune(room / "base", "classification", room / "reviews", out, "--push-to-hub", "me/kept", "--quiet")
    done.refused("was not pushed to `me/kept`", f"slimformer push {out} me/kept")
    assert artifact.verify(out)


def test_a_run_does_not_start_without_a_token(
    server: hub.FakeHub, room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    done = runs.finetune(room / "base", "classification", room / "reviews", tmp_path / "no", "--push-to-hub", "me/no")
    done.refused("no token to push `me/no` with; log in with `hf auth login`, or set HF_TOKEN")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a/b/c", "../me", "me/", "me/na me", "me/a--b", "", "me/name@main"])
def test_a_wrong_name_is_refused_before_anything_is_asked(server: hub.FakeHub, room: Path, name: str) -> None:
    with pytest.raises(UsageError):
        push(room / "sentiment", name)
    assert not server.asked


def test_without_a_network_a_line_says_so(
    server: hub.FakeHub, room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.shutdown()
    server.server_close()
    runs.run("push", room / "sentiment", "me/unreachable").refused("could not be reached", "check the network")
    runs.run("predict", "me/unreachable", "a text").refused("could not be fetched from the Hub", "the network")
    out = tmp_path / "out"
    flags = ("--push-to-hub", "me/unreachable", "--quiet")
    runs.finetune(room / "base", "classification", room / "reviews", out, *flags).refused("could not be reached")
    assert not list(tmp_path.glob("out*"))


def test_a_token_that_may_only_read_is_refused(
    server: hub.FakeHub, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.READ_ONLY)
    done = runs.run("push", room / "sentiment", "me/read")
    done.refused("the token may not write there (403)")
    assert hub.READ_ONLY not in done.err


class TestFetching:
    def test_what_is_not_there(self, server: hub.FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(CheckpointError, match="could not be fetched from the Hub: it is not there"):
            look_up("me/nothing")
        monkeypatch.delenv("HF_TOKEN")
        with pytest.raises(CheckpointError, match=r"\(401\); check the spelling, or log in"):
            look_up("me/nothing")

    def test_a_revision_that_is_not_there(self, server: hub.FakeHub) -> None:
        server.add("me/there")
        with pytest.raises(CheckpointError, match="it has no revision `v9`"):
            look_up("me/there@v9")

    def test_a_refusal_shows_no_token(self, server: hub.FakeHub) -> None:
        server.add("me/gated")
        server.failing = ("/api/models/me/gated", 403)
        with pytest.raises(SlimformerError, match=r"access is refused \(403\)") as refused:
            look_up("me/gated")
        assert hub.TOKEN not in str(refused.value)

    def test_offline_takes_what_is_in_the_cache(
        self, server: hub.FakeHub, room: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        push(room / "sentiment", "me/sentiment")
        folder = models.located("me/sentiment")
        monkeypatch.setattr("slimformer.models.hub._folders", {})
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        asked = len(server.asked)
        assert models.located("me/sentiment") == folder
        with pytest.raises(CheckpointError, match="in offline mode; unset HF_HUB_OFFLINE"):
            models.located("me/another")
        assert len(server.asked) == asked

    def test_a_name_stays_at_the_commit_it_was_first_read_at(self, server: hub.FakeHub, room: Path) -> None:
        first = push(room / "sentiment", "me/moving").commit
        folder = models.located("me/moving")
        push(room / "sentiment", "me/moving", message="again")
        server.repos["me/moving"].commit("main", {**server.repos["me/moving"].files(), "new.json": b"{}"})
        assert models.located("me/moving") == folder
        assert folder.name == first

    def test_a_plain_checkpoint(self, server: hub.FakeHub, room: Path) -> None:
        files = {path.name: path.read_bytes() for path in (room / "base").iterdir()}
        server.add("me/plain", {**files, "pytorch_model.bin": b"a pickle", "onnx/model.onnx": b"another"})
        assert isinstance(open_model("me/plain").model, hf.PreTrainedModel)
        names = {path.name for path in models.located("me/plain").rglob("*")}
        assert not names & {"pytorch_model.bin", "model.onnx"}


class TestCorpora:
    @pytest.fixture
    def texts(self, server: hub.FakeHub, monkeypatch: pytest.MonkeyPatch) -> hub.FakeHub:
        lines = [json.dumps({"text": f"the film was good and the plot was dull {number % 7}"}) for number in range(400)]
        server.add("datasets/me/texts", {"train.jsonl": "\n".join(lines).encode()})
        return server

    def test_adapting_reads_a_stream_by_its_tokens(self, texts: hub.FakeHub, room: Path, tmp_path: Path) -> None:
        commit = texts.repos["datasets/me/texts"].branches["main"]
        flags = ("--rounds", 1, "--max-steps", 2, "--batch-size", 2, "--token-cache", tmp_path / "tokens", "--quiet")
        asked = ("adapt", "--model", room / "base", "--corpus", f"me/texts@{commit}", *flags)
        runs.run(*asked, "--out", tmp_path / "dry", "--dry-run").refused("is streamed from the Hub", "`--dry-run`")
        done = runs.run(*asked, "--out", tmp_path / "adapted")
        assert done.code == 0, done.err
        assert artifact.read_manifest(tmp_path / "adapted").steps[-1].config["corpus"] == [f"me/texts@{commit}"]
        assert list(tmp_path.glob("tokens/*/index.safetensors"))

    def test_post_training_takes_files(self, texts: hub.FakeHub, room: Path, tmp_path: Path) -> None:
        done = runs.run(
            *("quantize", "--post-training", "--model", room / "sentiment", "--weights", "int8"),
            *("--corpus", "me/texts", "--out", tmp_path / "out", "--quiet"),
        )
        done.refused("`me/texts train` is streamed from the Hub", "put some into a plain file")

    def test_a_break_in_the_middle_is_a_line(
        self, texts: hub.FakeHub, room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        texts.failing = ("GET /datasets/me/texts", 503)
        done = runs.run("trim", "--model", room / "base", "--corpus", "me/texts", "--out", tmp_path / "out", "--quiet")
        done.refused("me/texts", "Hub")
