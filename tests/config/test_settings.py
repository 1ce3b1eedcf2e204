"""Settings: layers over one another, and every mistake told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Self

import pytest
from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator

from headrace.config import EffectiveValue, HeadraceSettings, Section, Settings
from headrace.errors import InvalidSettings, SettingsProblem

SECRET = "hunter2-do-not-show"


class Database(Section):
    url: str
    password: SecretStr | None = None
    pin: SecretStr | None = Field(default=None, min_length=40)
    pool: Annotated[int, Field(ge=1)] = 5
    pool_limit: int = 50
    replicas: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def pool_fits(self) -> Self:
        if self.pool > self.pool_limit:
            raise ValueError(f"pool {self.pool} is above pool_limit {self.pool_limit}")
        return self


class ShopSettings(Settings):
    env_prefix: ClassVar[str] = "SHOP"

    database: Database
    title: str = "Shop"
    limits: dict[str, int] = Field(default_factory=dict)
    headrace: HeadraceSettings = HeadraceSettings()


@pytest.fixture
def app(tmp_path: Path) -> Path:
    file = tmp_path / "app.toml"
    file.write_text('title = "Books"\n\n[database]\nurl = "sqlite:"\npool = 7\n')
    return file


def problems_of(*files: Path, **environ: str) -> list[SettingsProblem]:
    with pytest.raises(InvalidSettings) as invalid:
        ShopSettings.load(files, environ=environ)
    return list(invalid.value.problems)


def test_later_layers_win_key_by_key(app: Path, tmp_path: Path) -> None:
    """Environment beats deployment files, those beat the application's file, that beats the defaults."""
    deployment = tmp_path / "deployment.toml"
    deployment.write_text('[database]\npool = 8\nreplicas = ["a"]\n[limits]\nday = 1\nhour = 2\n')
    environ = {"SHOP_CONFIG": str(deployment), "SHOP__DATABASE__REPLICAS": '["b", "c"]', "SHOP__LIMITS__day": "3"}
    shop = ShopSettings.load([app], environ=environ)
    assert shop.title == "Books"
    assert shop.database == Database(url="sqlite:", pool=8, replicas=["b", "c"])
    assert shop.limits == {"day": 3, "hour": 2}


def test_several_deployment_files_are_read_in_order(app: Path, tmp_path: Path) -> None:
    """PREFIX_CONFIG names files separated as in PATH; the last wins."""
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text('title = "First"\n[database]\npool = 1\n')
    second.write_text('title = "Second"\n')
    shop = ShopSettings.load([app], environ={"SHOP_CONFIG": f"{first}:{second}"})
    assert (shop.title, shop.database.pool) == ("Second", 1)


def test_variables_are_typed_by_the_model(app: Path) -> None:
    """Numbers, flags and null arrive as what the model declares, at any depth and in any case."""
    environ = {
        "SHOP__DATABASE__POOL": "9",
        "SHOP__TITLE": "42",
        "SHOP__HEADRACE__LOG__EMBEDDED__FSYNC": "false",
        "shop__headrace__log__kafka__linger_ms": "0.5",
        "SHOP__HEADRACE__OBSERVE__METRICS_PORT": "null",
        "SHOP__HEADRACE__LOG__KAFKA__CLIENT": '{"sasl.password": "x"}',
        "SHOP__HEADRACE__LOG__KAFKA__CLIENT__client.id": "shop",
    }
    shop = ShopSettings.load([app], environ=environ)
    assert (shop.database.pool, shop.title) == (9, "42")
    assert shop.headrace.log.embedded.fsync is False
    assert shop.headrace.log.kafka.linger_ms == 0.5
    assert shop.headrace.observe.metrics_port is None
    assert shop.headrace.log.kafka.client == {"sasl.password": "x", "client.id": "shop"}


def test_another_prefix_can_be_given(app: Path) -> None:
    """`env_prefix` replaces the class's own; variables of other prefixes are not looked at."""
    environ = {"STORE__TITLE": "Store", "SHOP__NONSENSE": "1", "STORETITLE": "no"}
    assert ShopSettings.load([app], environ=environ, env_prefix="STORE").title == "Store"


def test_all_mistakes_of_all_layers_come_together(app: Path, tmp_path: Path) -> None:
    """One error lists every mistake, each with its file and line, or its variable, and its key."""
    app.write_text('titel = "Books"\n\n[database]\nurl = 5\npool = "many"\n\n[databse]\nurl = "x"\n')
    deployment = tmp_path / "deployment.toml"
    deployment.write_text("[headrace.log.embedded]\n# how sure\nfsync = 'perhaps'\n")
    environ = {
        "SHOP_CONFIG": str(deployment),
        "SHOP__DATABASE__POOL": "0",
        "SHOP__DATABASE__REPLICAS": "a,b",
        "SHOP__HEADRACE__LOG__ADRESS": "embedded:",
    }
    found = {(problem.source, problem.key): problem.problem for problem in problems_of(app, **environ)}
    assert found == {
        (f"{app}:1", "titel"): "unknown key; did you mean 'title'?",
        (f"{app}:4", "database.url"): "input should be a valid string, got 5",
        (f"{app}:5", "database.pool"): (
            "input should be a valid integer, unable to parse string as an integer, got 'many'"
        ),
        (f"{app}:7", "databse"): "unknown key; did you mean 'database'?",
        (f"{deployment}:3", "headrace.log.embedded.fsync"): (
            "input should be a valid boolean, unable to interpret input, got 'perhaps'"
        ),
        ("environment SHOP__DATABASE__POOL", "database.pool"): "input should be greater than or equal to 1, got '0'",
        ("environment SHOP__DATABASE__REPLICAS", "database.replicas"): (
            "must be JSON, such as [1, 2]: Expecting value"
        ),
        ("environment SHOP__HEADRACE__LOG__ADRESS", "headrace.log.adress"): "unknown key; did you mean 'address'?",
    }


def test_a_mistake_that_a_higher_layer_hides_is_told_too(app: Path) -> None:
    """The wrong value in the file is reported although the environment replaces it."""
    app.write_text('[database]\nurl = "x"\npool = -1\n')
    [problem] = problems_of(app, SHOP__DATABASE__POOL="5")
    assert (problem.source, problem.key) == (f"{app}:3", "database.pool")


def test_a_table_where_a_value_belongs_is_told(app: Path) -> None:
    """A table for a text, and a value for a table, are mistakes of the layer they stand in."""
    app.write_text('headrace = 5\n[database.url]\nhost = "x"\n')
    found = {problem.key: problem for problem in problems_of(app, SHOP__DATABASE__URL="sqlite:")}
    assert found["headrace"] == SettingsProblem(f"{app}:1", "headrace", "must be a table")
    assert found["database.url"].source == f"{app}:2"
    assert len(found) == 2


def test_a_required_key_that_nobody_set_says_how_to_set_it() -> None:
    """What is missing is told with the variable that would set it."""
    [problem] = problems_of()
    assert (problem.source, problem.key) == ("no layer", "database")
    [problem] = problems_of(SHOP__DATABASE__POOL="3")
    assert str(problem) == "no layer: database.url: is required; set it in a file, or as SHOP__DATABASE__URL"


def test_a_rule_between_keys_names_all_their_sources(app: Path) -> None:
    """Each value is fine, together they are not: the section is told with the layers that made it."""
    [problem] = problems_of(app, SHOP__DATABASE__POOL_LIMIT="3")
    assert problem.key == "database"
    assert problem.problem == "pool 7 is above pool_limit 3"
    assert f"{app}:5" in problem.source
    assert "environment SHOP__DATABASE__POOL_LIMIT" in problem.source


def test_a_rule_is_not_told_about_values_that_were_taken_out(app: Path) -> None:
    """A wrong value is told once; the rule it would also break keeps quiet."""
    [problem] = problems_of(app, SHOP__DATABASE__POOL_LIMIT="a few")
    assert problem.key == "database.pool_limit"


def test_a_key_that_another_layer_made_wrong_is_told_once_with_its_own_source(app: Path) -> None:
    """A check that looks at a neighbour fails where the checked value stands, not where the neighbour does."""

    class Bounded(Settings):
        low: int = 0
        high: int = 10

        @field_validator("high")
        @classmethod
        def above_low(cls, high: int, info: ValidationInfo) -> int:
            if high < info.data["low"]:
                raise ValueError("is below low")
            return high

    app.write_text("high = 5\n")
    with pytest.raises(InvalidSettings) as invalid:
        Bounded.load([app], environ={"B__LOW": "7", "B__TITEL": ""}, env_prefix="B")
    high, titel = sorted(invalid.value.problems, key=lambda problem: problem.key)
    assert high == SettingsProblem(f"{app}:1", "high", "is below low, got 5")
    assert titel.problem == "unknown key; known here: high, low"


def test_an_item_of_a_list_is_named(app: Path) -> None:
    """The key of a wrong item has its index, the source is the list's."""
    [problem] = problems_of(app, SHOP__DATABASE__REPLICAS='["a", 5]')
    assert (problem.key, problem.problem) == ("database.replicas.1", "input should be a valid string, got 5")


def test_files_that_cannot_be_read_are_problems_like_others(app: Path, tmp_path: Path) -> None:
    """Missing files, folders, broken TOML and broken text are told together, without a traceback."""
    missing, folder, broken, binary = tmp_path / "none.toml", tmp_path, tmp_path / "broken.toml", tmp_path / "bin.toml"
    broken.write_text('title = "Books"\ntitle = \n')
    binary.write_bytes(b"title = '\xff'")
    found = {
        problem.source: problem.problem
        for problem in problems_of(app, missing, folder, broken, SHOP_CONFIG=str(binary), SHOP__TITLES="")
    }
    assert found[str(missing)] == "can't be read: No such file or directory"
    assert found[str(folder)] == "can't be read: Is a directory"
    assert found[str(broken)].startswith("is not TOML: Invalid value (at line 2")
    assert found[str(binary)] == "is not TOML: not UTF-8 at byte 9"
    assert found["environment SHOP__TITLES"] == "unknown key; did you mean 'title'?"


def test_the_message_lists_every_problem_and_the_next_step(app: Path) -> None:
    """The error's text has one line for each problem."""
    with pytest.raises(InvalidSettings) as invalid:
        ShopSettings.load([app], environ={"SHOP__TITLES": "x", "SHOP__DATABASE__POOL": "x"})
    lines = str(invalid.value).splitlines()
    assert lines[0] == "2 problems in the settings:"
    assert len(lines) == 4
    assert lines[-1] == "correct them and start again"


@pytest.mark.parametrize(
    "environ",
    [
        {"SHOP__DATABASE__PASSWORD": f'["{SECRET}"]', "SHOP__DATABASE__POOL": "x"},
        {"SHOP__DATABASE": f'{{"password": ["{SECRET}"]}}'},
        {"SHOP__HEADRACE__LOG__KAFKA__CLIENT": f'{{"sasl.password": ["{SECRET}"]}}'},
        {"SHOP__HEADRACE__LOG__KAFKA__CLIENT": SECRET},
        {"SHOP__HEADRACE__LOG__KAFKA__CLIENT": f'"{SECRET}"'},
        {"SHOP__HEADRACE__LOG__KAFKA": f'"{SECRET}"'},
        {"SHOP__DATABASE__PIN": SECRET},
        {"SHOP__DATABASE__PASSWORT": SECRET},
        {"SHOP__DATABASE": f'{{"passwort": "{SECRET}"}}'},
        {"SHOP__API_TOKEN": SECRET},
        {"SHOP__DATABASE__POOL": f"postgres://user:{SECRET}@host"},
    ],
)
def test_a_secret_is_never_in_an_error(app: Path, environ: dict[str, str]) -> None:
    """However a secret is misplaced, the error does not repeat it."""
    with pytest.raises(InvalidSettings) as invalid:
        ShopSettings.load([app], environ=environ)
    assert SECRET not in str(invalid.value) + repr(invalid.value)


def test_a_secret_is_never_shown(app: Path) -> None:
    """Neither repr nor describe shows passwords, whether typed as secrets or named like them."""
    environ = {
        "SHOP__DATABASE__PASSWORD": SECRET,
        "SHOP__HEADRACE__LOG__KAFKA__CLIENT": f'{{"sasl.password": "{SECRET}", "client.id": "shop"}}',
        "SHOP__HEADRACE__LOG__ADDRESS": f"kafka://user:{SECRET}@host:9092",
    }
    shop = ShopSettings.load([app], environ=environ)
    shown = {each.key: each.value for each in shop.describe()}
    assert SECRET not in str(shown)
    assert shown["database.password"] == "***"
    assert shown["headrace.log.kafka.client.sasl.password"] == "***"
    assert shown["headrace.log.kafka.client.client.id"] == "shop"
    assert shown["headrace.log.address"] == "kafka://***@host:9092"
    assert SECRET not in repr(shop.database)
    assert SECRET not in repr(shop.headrace.log.kafka)
    assert shop.database.password is not None
    assert shop.database.password.get_secret_value() == SECRET


def test_describe_tells_each_value_and_its_layer(app: Path) -> None:
    """Every key is there once, with the file and line, variable or defaults that it came from."""
    shop = ShopSettings.load([app], environ={"SHOP__LIMITS": '{"day": 3}'})
    described = {each.key: each for each in shop.describe()}
    assert described["title"] == EffectiveValue("title", "Books", f"{app}:1", "")
    assert described["database.pool"].source == f"{app}:5"
    assert described["limits.day"] == EffectiveValue("limits.day", 3, "environment SHOP__LIMITS", "")
    assert described["database.pool_limit"].source == "defaults"
    assert described["headrace.log.address"].source == "defaults"
    assert described["headrace.log.address"].description
    assert len(described) == len(shop.describe())


def test_values_given_in_code_are_described_as_such() -> None:
    """Settings made without load know that their values come from the program."""
    made = ShopSettings(database=Database(url="x"), title="Made")
    described = {each.key: each.source for each in made.describe()}
    assert (described["title"], described["database.url"], described["limits"]) == ("code", "code", "defaults")


def test_settings_cannot_be_changed() -> None:
    """What was loaded stays as it was."""
    with pytest.raises(ValidationError, match="frozen"):
        Database(url="x").pool = 3


def test_the_process_environment_is_used_unless_another_is_given(monkeypatch: pytest.MonkeyPatch, app: Path) -> None:
    """`load()` reads os.environ."""
    monkeypatch.setenv("SHOP__TITLE", "From outside")
    assert ShopSettings.load([app]).title == "From outside"
