import pyarrow as pa
import pytest

from hieropo.errors import SchemaError
from hieropo.logs.arrow.schema import ROLE_NAMES, guess_roles
from hieropo.rows.batches import Roles

IDS, NUMBER, LIST, STAMP = pa.string(), pa.float64(), pa.list_(pa.string()), pa.timestamp("us")
TYPES = {"task": IDS, "action": IDS, "eligible": LIST, "time": STAMP}


def schema(**columns):
    return pa.schema(list(columns.items()))


BARE = schema(user_id=IDS, action=IDS, click=NUMBER)


@pytest.mark.parametrize(
    ("role", "name"), [(role, name) for role, names in ROLE_NAMES.items() for name in names]
)
def test_every_well_known_name_is_taken_for_its_role_alone(role, name):
    given = {"task": "s", "reward": "r"}
    given.pop(role, None)
    columns = {"s": IDS, "r": NUMBER, "x": NUMBER} | {name: TYPES.get(role, NUMBER)}
    roles, told = guess_roles(schema(**columns), given)
    expected = {"task": "s", "action": None, "reward": "r", role: name}
    assert roles == Roles(**expected)
    assert len(told) == 1
    assert repr(name) in told[0]


def test_no_name_is_known_for_two_roles():
    names = [name for names in ROLE_NAMES.values() for name in names]
    assert len(names) == len({name.replace("_", "") for name in names})


@pytest.mark.parametrize("name", ["userId", "USER_ID", "User ID", "user.id", "UserID"])
def test_case_and_punctuation_do_not_matter(name):
    roles, _ = guess_roles(schema(**{name: IDS, "Reward": NUMBER}), {})
    assert (roles.task, roles.reward, roles.action) == (name, "Reward", None)


def test_what_is_given_is_kept_and_not_guessed_again():
    roles, told = guess_roles(BARE, {"task": "action", "action": "user_id", "reward": "click", "context": []})
    assert roles == Roles("action", "user_id", "click")
    assert not told


def test_a_column_that_was_given_a_role_is_no_candidate_for_another():
    columns = schema(user_id=IDS, store=IDS, action=IDS, click=NUMBER, probability=NUMBER)
    roles, _ = guess_roles(columns, {"context": ["probability"], "levels": ["store"]})
    assert (roles.task, roles.pscore, roles.levels) == ("user_id", None, ("store",))


def test_two_candidates_are_no_guess():
    columns = schema(user_id=IDS, customer=IDS, reward=NUMBER)
    with pytest.raises(SchemaError, match="More than one column could be the task: 'user_id' and 'customer'"):
        guess_roles(columns, {})
    roles, told = guess_roles(columns.append(pa.field("prob", NUMBER)).append(pa.field("propensity", NUMBER)),
                              {"task": "customer"})  # fmt: skip
    assert roles.pscore is None
    assert "No column is taken as the propensity: 'prob' and 'propensity' could be." in told


def test_two_columns_of_one_name_are_no_guess():
    doubled = pa.schema([("user_id", IDS), ("user_id", IDS), ("reward", NUMBER)])
    with pytest.raises(SchemaError, match="More than one column could be the task"):
        guess_roles(doubled, {})


def test_an_optional_role_needs_a_column_of_a_type_that_can_play_it():
    roles, told = guess_roles(BARE.append(pa.field("prob", IDS)).append(pa.field("date", IDS)), {})
    assert roles.pscore is roles.time is None
    assert len(told) == 5
    assert "'prob' is not taken as the propensity, as its name suggests, since its type is string" in told[3]


def test_only_the_roles_asked_for_are_guessed():
    columns = BARE.append(pa.field("timestamp", STAMP))
    assert guess_roles(columns, {})[0].time == "timestamp"
    assert guess_roles(columns, {}, ("task", "reward"))[0] == Roles("user_id", None, "click")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": IDS, "gain": NUMBER}, r"The role reward needs a column.*--reward"),
        ({"user": IDS, "adCost": NUMBER}, "'adCost' looks like a cost.*: make a column of -adCost"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_asked_for(columns, message):
    with pytest.raises(SchemaError, match=message):
        guess_roles(schema(**columns), {})


def test_without_a_column_of_tasks_all_rows_are_one_task():
    roles, notes = guess_roles(schema(place=IDS, reward=NUMBER), {})
    assert roles == Roles(None, None, "reward")
    assert notes[1:] == [
        "No column of tasks is named, and none has a well-known name of one: all rows are one task."
    ]
    roles, notes = guess_roles(schema(user=IDS, reward=NUMBER), {"reward": "reward"}, ())
    assert roles.task is None
