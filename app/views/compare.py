"""The Compare page: several assignments, systems or machines on one axis, and what sets them apart."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal
from urllib.parse import urlencode

import streamlit as st

from app import cached_compare
from app.cached import Inputs
from app.cached_compare import Candidate, Result
from app.figures.breakdown import breakdown_data, draw_breakdown
from app.figures.compare import draw_stacked, stacked_data
from app.figures.compare_map import draw_map, map_data
from app.figures.compare_parts import delta_data, draw_bars
from app.figures.style import CHART
from app.library import Library
from app.provenance import origin_words, provenance, signed_csv
from app.views import compare_changes, compare_knobs, compare_table, compare_truth, export, sources, what_ifs
from app.views.sources import Asked
from app.words import compare as words
from app.words import labels
from app.words.cluster import MACHINE_WORDS, device_sentence, is_computed
from app.words.switches import as_it_ran
from app.words.tune import CARRIED
from sim.errors import SimError
from sim.units import format_ms

_CARDS = 3  # a row


def show(library: Library, asked: Asked) -> None:
    """Draw the page; a candidate that cannot be played is one line, and the others stay."""
    candidates = compare_knobs.show(library)
    st.title("Compare")
    given = sources.read(library, asked)
    if given is None:
        sources.nothing_to_show(library)
        return
    inputs = given.inputs
    st.caption(labels.plain(sources.inputs_words(given, asked)))
    sources.tell_chosen(asked)
    elsewhere = what_ifs.standing().beside(inputs.workload, inputs.hardware)
    if not elsewhere.is_none:
        names = ", ".join(labels.what_if_words(*one) for one in elsewhere.told().items())
        st.info(labels.plain(words.ELSEWHERE.format(what_ifs=names)), icon=":material/tune:")
    if given.is_carried:
        st.caption(CARRIED)
    if given.inputs.workload.switches:
        st.caption(labels.plain(as_it_ran(given.inputs.workload.switches)))
    candidates = tuple(replace(one, choice=one.choice.with_given(given.assignment)) for one in candidates)
    results, errors = _play(inputs, candidates, library)
    _headline(candidates, results, errors)
    estimated = labels.estimated_sentence(inputs.workload)
    if estimated is not None:
        st.warning(labels.plain(estimated))
    for one in results:
        for note in one.played.report.notes:
            if labels.lacks_a_part(note):
                st.warning(labels.plain(words.lacking_sentence(one.name, note, one.uncounted_bytes)))
            else:
                st.caption(labels.plain(f"{one.name}: {note}."))
    if results:
        _timelines(results)
    presets = [one.candidate.machine.preset for one in results]
    computed = sorted({MACHINE_WORDS[preset] for preset in presets if preset is not None})
    if any(is_computed(one.inputs.hardware) for one in results):
        unlike = device_sentence(inputs.workload, None)
        if unlike is not None:
            st.warning(labels.plain(unlike))
    if computed:
        st.caption(labels.plain(words.COMPUTED.format(machines=", ".join(computed))))
    compare_table.show(candidates, results, errors)
    verdicts = [labels.plain(f"{one.name}: {one.played.report.verdict}") for one in results]
    st.markdown("\n".join(f"- {verdict}" for verdict in verdicts))
    for one in results:
        exposed_ns = one.played.report.exposed_by_micro_batch_ns
        if len(exposed_ns) > 1:
            st.info(labels.plain(words.syncs_each_sentence(one.name, exposed_ns)))
    has_base = candidates[0].letter not in errors
    if has_base and len(results) > 1:
        compare_changes.show(results)
    if results:
        _breakdown(results, with_delta=has_base and len(results) > 1 and _are_alike(results))
        _map(results)
    compare_truth.show(given, library, results)
    _take_home(inputs, candidates, results, errors)


def _play(
    inputs: Inputs, candidates: Sequence[Candidate], library: Library
) -> tuple[tuple[Result, ...], dict[str, str]]:
    """What could be played, and by letter why something could not."""
    results, errors = [], {}
    for candidate in candidates:
        try:
            results.append(cached_compare.play(inputs, candidate, library))
        except SimError as error:
            errors[candidate.letter] = str(error)
    return tuple(results), errors


def _headline(candidates: Sequence[Candidate], results: Sequence[Result], errors: dict[str, str]) -> None:
    """A card a candidate, the sentence that names the fastest, and a line for each that failed."""
    played = {one.letter: one for one in results}
    base = played.get(candidates[0].letter)
    are_alike = _are_alike(results)
    places = [place for _ in range(0, len(candidates), _CARDS) for place in st.columns(_CARDS)]
    if len(candidates) == 2:
        places = list(st.columns(2))
    for place, candidate in zip(places, candidates, strict=False):
        result, delta = played.get(candidate.letter), None
        if result is not None and base is not None and result is not base and are_alike:
            delta = words.gain_words(base.step_ns - result.step_ns, base.step_ns)
        place.metric(
            labels.plain(result.name if result else candidate.name),
            format_ms(result.step_ns) if result else "-",
            delta,
            delta_color=_colour(delta),
            delta_arrow="off",
            help=words.HELP["step"],
            border=True,
            height="stretch",
        )
    if not are_alike:
        told = [(one.name, one.step_ns, one.micro_batches) for one in results]
        names, steps, counts = zip(*told, strict=True)
        st.warning(labels.plain(words.unlike_sentence(names, steps, counts)))
    elif base is not None and len(results) > 1:
        sentence = words.fastest_sentence([one.name for one in results], [one.step_ns for one in results])
        st.markdown(f"**{labels.plain(sentence)}**")
    for letter, error in errors.items():
        st.error(labels.plain(f"{letter}: {error}"), icon=":material/error:")


def _are_alike(results: Sequence[Result]) -> bool:
    """Whether all steps have as many micro-batches, so that they are the same work."""
    return len({one.micro_batches for one in results}) <= 1


def _colour(delta: str | None) -> Literal["off", "green", "orange"]:
    if delta is None or delta.startswith("as fast"):
        return "off"
    return "green" if "faster" in delta else "orange"


def _timelines(results: Sequence[Result]) -> None:
    data = stacked_data([(one.letter, one.candidate.words, one.played.timeline) for one in results])
    st.plotly_chart(
        draw_stacked(data),
        key="stacked",
        config=CHART,
        alt="Timelines of all candidates on one axis",
    )
    st.caption(words.TIMELINE_CAPTION)
    if data.note:
        st.info(data.note)


def _breakdown(results: Sequence[Result], *, with_delta: bool) -> None:
    st.subheader("Where does each step's time go?")
    reports = {words.short(one.name): one.played.report for one in results}
    timelines = {words.short(one.name): one.played.timeline for one in results}
    st.plotly_chart(
        draw_breakdown(breakdown_data(reports, timelines)),
        key="compare_breakdown",
        config=CHART,
        alt="Where a step's time goes, a candidate a bar",
    )
    if not with_delta:
        return
    steps = {name: report.step_ns for name, report in reports.items()}
    st.plotly_chart(
        draw_bars(delta_data(steps), "ms against A (left: faster)"),
        key="compare_delta",
        config=CHART,
        alt="Each candidate's step against A's",
    )


def _map(results: Sequence[Result]) -> None:
    st.subheader("Where are the cuts?")
    st.plotly_chart(
        draw_map(
            map_data([(words.short(one.name), one.inputs.workload, one.played.assignment) for one in results])
        ),
        key="compare_map",
        config=CHART,
        alt="Gradients in ready order, coloured by bucket, a candidate a row",
    )
    st.caption(words.MAP_CAPTION)


def _take_home(
    inputs: Inputs, candidates: Sequence[Candidate], results: Sequence[Result], errors: dict[str, str]
) -> None:
    st.subheader("Take it home")
    where_from = provenance(inputs, {})
    export.download(
        "Comparison CSV",
        lambda: signed_csv(compare_table.csv_text(candidates, results, errors), where_from),
        f"{labels.file_safe(inputs.workload.name)}-compare.csv",
        "A row a candidate, times in ns and sizes in bytes",
    )
    if st.context.url is not None:
        st.markdown("This comparison, as a link (uploads are not in it):")
        link = address(st.context.url, st.query_params.to_dict(), candidates)
        st.code(link, language=None, wrap_lines=True)
    st.caption(labels.plain(origin_words(where_from)))


def address(url: str, query: Mapping[str, str], candidates: Sequence[Candidate]) -> str:
    """The page's address with every pick in it: what stands at its default today may not tomorrow."""
    picks = {
        f"{one.letter.lower()}_pick": words.PICK_WORDS[words.BEST_CAP if one.is_best_cap else one.choice.pick]
        for one in candidates
    }
    return f"{url}?{urlencode({'candidates': len(candidates), **picks, **query})}"
