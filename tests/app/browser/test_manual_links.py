"""The manual: a page is chosen by its name, a link leads to the word that it names, in the same tab."""

from typing import Any

import pytest

from tests.app.browser.harness import Site, go, still

pytestmark = pytest.mark.browser


def test_a_page_is_chosen_by_its_bare_name_and_a_link_leads_to_its_word(site: Site, page: Any) -> None:
    go(page, f"{site.url}/manual?page=how-it-works")
    still(page)
    main = page.get_by_test_id("stMain")
    assert main.locator("h1").inner_text() == "How it works"
    assert page.url.endswith("?page=How+it+works"), "the address says the page's title"
    main.get_by_role("link", name="exposed communication").first.click()
    page.wait_for_url("**/manual?page=Glossary#exposed-communication")
    page.wait_for_function(
        """() => {
      const word = document.getElementById('exposed-communication');
      return word && Math.abs(word.getBoundingClientRect().top) < window.innerHeight / 2;
    }"""
    )
