from loadchaos.analysis.capacity import result
from loadchaos.analysis.capacity.step_columns import COLUMNS, LATENCIES
from loadchaos.campaigns.capacity.files import table
from loadchaos.core import resources
from loadchaos.report.capacity_text import STEP_HEADS, step_cells
from loadchaos.report.html import capacity_page
from loadchaos.report.terminal import capacity
from tests.report.made_up_search import search_result


def test_schema_of_capacity_json_is_up_to_date() -> None:
    text = (resources.folder("schemas") / "capacity.json").read_text()
    assert text == result.schema(), "run `make schemas`"


def test_tables_of_a_search_have_the_columns_of_one_list() -> None:
    data = search_result()
    assert table(data).splitlines()[0].split(",") == list(COLUMNS)
    heads = [head for head in COLUMNS.values() if head]
    assert list(STEP_HEADS.values()) == heads
    assert capacity.table(data)[0].split("  ")[-1] == heads[-1]
    page = capacity_page.render(data)
    assert all(f"<th>{head}</th>" in page for head in heads)
    assert len(step_cells(data.steps[0])) == len(heads)
    assert {name for name, _, _ in LATENCIES} <= set(COLUMNS)
