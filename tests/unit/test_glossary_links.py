"""Links to the glossary on the pages of the site."""

from glossary_links import LINKED, anchor, meanings, with_anchors, with_links


def test_every_linked_word_has_a_row_in_the_glossary():
    assert set(meanings()) == set(LINKED)


def test_the_first_use_of_a_word_in_a_text_is_a_link():
    page = "<h2>lane</h2><p><code>lane</code> <a>lane</a> A lane, another lane, an airplane.</p>"
    assert with_links(page, "../glossary.html", {"lane": "All tasks of `x`."}) == (
        "<h2>lane</h2><p><code>lane</code> <a>lane</a> A "
        '<a class="word" href="../glossary.html#word-lane" title="All tasks of x.">lane</a>, another lane, an airplane.</p>'
    )


def test_the_longer_word_is_linked_where_two_begin_alike():
    assert 'word-start-fact"' in with_links("<p>a start fact</p>", "g", {"fact": "F.", "start fact": "S."})


def test_rows_of_the_glossary_get_the_ids_that_links_name():
    assert with_anchors("<td>start fact</td><td>x</td>") == f'<td id="{anchor("start fact")}">start fact</td><td>x</td>'
