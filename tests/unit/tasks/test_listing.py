"""Data lists as people write them, and everything that is wrong with one told at once."""

import json
from pathlib import Path

import pytest

from autofedavg.core.errors import DataError
from autofedavg.tasks.lists.listing import read_listing


@pytest.fixture
def table(tmp_path):
    """Writes a list and reads it."""

    def read(content, name: str = "list.csv", encoding: str = "utf-8", **how):
        path = tmp_path / name
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_bytes(text.encode(encoding))
        return read_listing(path, how.pop("root", tmp_path), **how)

    return read


PLAIN = "site,image,label\nnorth,a.nii.gz,a_label.nii.gz\nsouth,b.nii.gz,b_label.nii.gz\n"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_tables_as_programs_save_them(table, tmp_path, delimiter, ending, encoding) -> None:
    text = PLAIN.replace(",", delimiter).replace("\n", ending)
    found = table(text, encoding=encoding)
    assert [(e.site, e.case) for e in found.entries] == [("north", "a"), ("south", "b")]
    assert found.entries[0].image == (tmp_path / "a.nii.gz",)
    assert found.entries[0].patient == "a"
    assert [*found.sites()] == ["north", "south"]


def test_quotes_spaces_and_letters_of_any_language(table, tmp_path) -> None:
    text = (
        "Site , IMAGE,label,case,patient,split,fold\n"
        '"Krankenhaus, Nord","Größe 1/Bild ä.png","Größe 1/маска.png","Fall ""1""",P 1,VAL,0\n'
        ",,,,,,\n\n"
        '北,"two\u2028lines.png|other.png",l.png,,,Testing,2\n'
    )
    one, two = table(text).entries
    assert one.site == "Krankenhaus, Nord"
    assert one.image == (tmp_path / "Größe 1" / "Bild ä.png",)
    assert one.label.name == "маска.png"
    assert (one.case, one.patient, one.split, one.fold) == ('Fall "1"', "P 1", "validation", 0)
    assert [path.name for path in two.image] == ["two\u2028lines.png", "other.png"]
    assert (two.split, two.fold) == ("test", 2)


def test_every_mistake_of_a_table_is_told_with_its_line(table) -> None:
    text = (
        "site,image,label,split,fold\n"
        ",a.png,al.png,,\n"
        "north,,bl.png,,\n"
        "north,../../c.png,cl.png,,\n"
        "north,/etc/d.png,dl.png,,\n"
        "north,e.png,el.png,later,\n"
        "north,f.png,fl.png,,two\n"
        "north,g.png,gl.png,,,too,many\n"
        "north,h.png,hl.png,,\n"
        "south,h.png,hl2.png,,\n"
        "south,i.png,i.png,,\n"
    )
    with pytest.raises(DataError) as caught:
        table(text)
    said = str(caught.value)
    assert "9 mistakes:" in said
    for piece in (
        "line 2: there is no site", "line 3: there is no image",
        "line 4: ../../c.png leads out of", "line 5: /etc/d.png leads out of",
        "line 6: split 'later' is none of train, validation, test",
        "line 7: fold 'two' is not a number", "line 8: there are more cells than columns",
        "h.png belongs to north/h and to south/h", "south/i names i.png twice",
        "set task.allow_outside = true if that is intended",
    ):  # fmt: skip
        assert piece in said
    assert caught.value.exit_code == 3


def test_columns_are_checked_all_at_once(table) -> None:
    with pytest.raises(DataError) as caught:
        table("site,img,labl,site,patient\n")
    said = str(caught.value)
    for piece in (
        "there is no column 'image'", "there is no column 'label'", "two columns 'site'",
        "column 'img' is unknown", "column 'labl' is unknown, did you mean label?",
    ):  # fmt: skip
        assert piece in said


def test_broken_quotes_are_told_with_their_line(table) -> None:
    with pytest.raises(DataError, match=r"list\.csv, line 2: not a table: .*check quotes"):
        table('site,image,label\nnorth,"a"b.png,c.png\n')


def test_a_list_may_lead_out_of_its_root_only_if_that_is_allowed(table, tmp_path) -> None:
    text = "site,image,label\nnorth,../a.png,../x/../b.png\n"
    (entry,) = table(text, allow_outside=True).entries
    assert entry.image == (tmp_path.parent / "a.png",)
    assert entry.label == tmp_path.parent / "b.png"
    (inside,) = table("site,image,label\nnorth,x/../a.png,b.png\n").entries
    assert inside.image == (tmp_path / "a.png",)


def test_files_of_one_name_are_told_apart_by_their_folders(table) -> None:
    text = (
        "site,image,label\nn,p1/image.nii,p1/l.nii\nn,p2/image.nii,p2/l.nii\ns,p3/image.nii,q.nii\n"
    )
    assert [entry.case for entry in table(text).entries] == ["p1/image", "p2/image", "image"]
    with pytest.raises(DataError, match=r"1 mistake:\n  n/a is listed twice"):
        table("site,image,label,case\nn,1.png,2.png,a\nn,3.png,4.png,a\n")
    with pytest.raises(DataError, match="is listed twice"):
        table("site,image,label\nn,1.png,2.png\nn,1.png,2.png\n")


def case(number: int, **more) -> dict:
    return {"image": f"./i/{number}.nii.gz", "label": f"./l/{number}.nii.gz", "site": "n", **more}


def test_the_decathlons_layout(table) -> None:
    found = table(
        {
            "name": "Liver", "modality": {"0": "CT"}, "numTraining": 2,
            "labels": {"0": "background", "2": "tumour", "1": "liver"},
            "training": [case(1), case(2, modality="x")],
            "test": ["./imagesTs/3.nii.gz"],
        },
        "dataset.json",
    )  # fmt: skip
    assert [entry.split for entry in found.entries] == ["", ""]
    assert found.unlabelled == 1
    assert dict(found.classes) == {"liver": (1,), "tumour": (2,)}
    assert [*found.classes] == ["liver", "tumour"]


def test_monais_layout_with_folds_channels_and_splits(table) -> None:
    found = table(
        {
            "labels": {"background": 0, "edema": [1, 4], "core": 3},
            "training": [case(1, fold=0, image=["a.nii", "b.nii"]), case(2, fold=1, Patient=7)],
            "validation": [case(3)],
            "testing": [case(4, split="test")],
        },
        "list.json",
    )
    assert [entry.split for entry in found.entries] == ["train", "train", "validation", "test"]
    assert len(found.entries[0].image) == 2
    assert (found.entries[0].fold, found.entries[1].patient) == (0, "7")
    assert dict(found.classes) == {"edema": (1, 4), "core": (3,)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[]", "a JSON data list is an object"),
        ({"cases": []}, r"there is no section of cases in \['cases'\]; name one of training"),
        ({"training": {}}, "'training' is not a list"),
        ({"training": []}, "there is no case with a label"),
        ({"training": [3, case(1, site="")]}, r"2 mistakes:\n  training 1: a case is an object"),
        (
            {"training": [case(1, patient_id="x")]},
            "'patient_id' is unknown, did you mean patient",
        ),
        ({"training": [case(1, label=["a"])]}, r"label is \['a'\], not the name of a file"),
        ({"training": [case(1)], "labels": {"liver": "one"}}, "'liver' has the value 'one'"),
        ({"training": [case(1)], "labels": {"a": [1, 2], "b": 2}}, r"\[2\] mean more than one"),
    ],
)
def test_mistakes_of_a_json_list(table, content, said) -> None:
    with pytest.raises(DataError, match=said):
        table(content, "list.json")


def test_labels_with_background_alone_name_no_class(table) -> None:
    found = table({"training": [case(1)], "labels": {"0": "background"}}, "list.json")
    assert not found.classes
    merged = table({"training": [case(1)], "labels": {"1": "a", "2": "a"}}, "list.json")
    assert dict(merged.classes) == {"a": (1, 2)}


def test_many_mistakes_are_counted(table) -> None:
    rows = "".join(f",{n}.png,{n}l.png\n" for n in range(30))
    with pytest.raises(DataError, match=r"(?s)30 mistakes:.*and 10 more"):
        table("site,image,label\n" + rows)


def test_what_is_no_list_is_told(table, tmp_path) -> None:
    with pytest.raises(DataError, match=r"no such data list; set task\.datalist to a \.csv"):
        read_listing(Path("nowhere.csv"), tmp_path)
    with pytest.raises(DataError, match=r"cannot be read as text .* save it as UTF-8"):
        table("site,image,label\nn,ä.png,b.png", encoding="latin-1")
