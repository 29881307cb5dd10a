//! Snippets and layouts: put into a part once, when a version of a template is made. What is rendered holds their text, so that mail that
//! is under way does not change with them.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

use runtime::Budget;

use super::fault::{FaultCode, Part, Position, Problem, TemplateFault};
use super::limits::{FAULTS, INCLUDE_DEPTH, INCLUDES, READING, SOURCE_BYTES, text_steps};
use super::names::{GIVEN_NAME, Locals, SAVED_NAME, kept_name};
use super::program::{Builder, Context};
use super::scan::{Insertion, ScannedSource, SourceKind, plain_lines, scan_source};
use super::structure;
use super::syntax::is_snippet_name;

/// What is put around a part.
#[derive(Debug, Clone, Copy)]
pub struct Layout<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its source, with one `{{ content }}`.
    pub source: &'a str,
}

/// A part with its snippets and its layout in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Composed {
    /// The part.
    pub text: String,
    /// The names of the snippets in it, sorted.
    pub used: BTreeSet<String>,
    pieces: Vec<PieceOrigin>,
    sources: Vec<PieceSource>,
}

/// Where a stretch of a composed text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PieceOrigin {
    /// Where it begins in the composed text.
    start: usize,
    /// Which of the sources it is of, and where it begins there.
    source: usize,
    offset: usize,
    /// The tag of the template that put it in.
    put_in_at: Position,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PieceSource {
    /// What it is; `None` is the template itself.
    name: Option<String>,
    text: String,
}

/// The names of snippets that a source mentions, in comments too: those it can include are among them.
#[must_use]
pub fn mentioned_snippets(source: &str) -> BTreeSet<String> {
    let quoted = |rest: &str| {
        let rest = rest.trim_start();
        let quote = rest.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        let name = rest.get(1..)?.split(quote).next()?;
        is_snippet_name(name).then(|| name.to_owned())
    };
    source.split("include").skip(1).filter_map(quoted).collect()
}

/// Checks the source of a snippet, or of a layout, for itself: its syntax, its blocks, its filters, and the one `{{ content }}` of a layout.
/// Names are checked in the template that uses it, which may set them.
///
/// # Errors
/// Every fault, up to a limit.
pub fn check_snippet(part: Part, is_layout: bool, source: &str) -> Result<(), Vec<TemplateFault>> {
    let budget = Budget::new(READING);
    let kind = if is_layout { SourceKind::Layout } else { SourceKind::Fragment };
    let ScannedSource { items, insertions, .. } = scan_source(part, kind, source, &budget)?;
    let mut faults = structure::faults(part, &items);
    let locals = Locals::collect(&items);
    let builder = Builder { part, context: Context::of(part), locals: &locals };
    faults.extend(items.iter().filter_map(|item| builder.fault(item)));
    let places: Vec<_> = insertions.iter().filter(|insertion| insertion.include.is_none()).collect();
    if is_layout && places.len() != 1 {
        let at = places.get(1).map_or(Position::START, |second| second.at);
        faults.push(Problem::new(FaultCode::ContentPlace, "a layout needs one `{{ content }}`").at(part, at));
    }
    faults.truncate(FAULTS);
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// Puts the snippets into a part, and the layout around it. `snippets` has the text of each for this part; `None` is a snippet that has none.
/// `name` is that of the source, if it is itself a snippet.
///
/// # Errors
/// Unknown snippets, each with its place; or the first cycle, or limit on depth, number or size that is passed.
pub fn compose(
    part: Part,
    source: &str,
    name: Option<&str>,
    layout: Option<Layout<'_>>,
    snippets: &HashMap<String, Option<String>>,
) -> Result<Composed, Vec<TemplateFault>> {
    compose_within(part, source, name, layout, snippets, &Budget::new(READING))
}

pub(super) fn compose_within(
    part: Part,
    source: &str,
    name: Option<&str>,
    layout: Option<Layout<'_>>,
    snippets: &HashMap<String, Option<String>>,
    budget: &Budget,
) -> Result<Composed, Vec<TemplateFault>> {
    let mut composer = PartComposer {
        part,
        budget,
        snippets,
        composed: Composed::default(),
        insertions: Vec::new(),
        by_name: HashMap::new(),
        open: name.map(str::to_owned).into_iter().collect(),
        includes: 0,
        faults: Vec::new(),
    };
    let result = composer.run(source, layout);
    composer.faults.extend(result.err());
    if composer.faults.is_empty() { Ok(composer.composed) } else { Err(composer.faults) }
}

impl Composed {
    /// A part that nothing is put into: each place in it is its own.
    #[must_use]
    pub fn unchanged(source: &str) -> Self {
        Self { text: source.to_owned(), ..Self::default() }
    }

    /// A fault found in the composed text, with its place in the template. That of a snippet's text is the place of the tag that put it
    /// in, and the detail says where in the snippet it is.
    #[must_use]
    pub fn place(&self, fault: TemplateFault) -> TemplateFault {
        let (at, detail) = self.origin(Position { line: fault.line, column: fault.column }, fault.detail);
        TemplateFault { line: at.line, column: at.column, detail, ..fault }
    }

    /// The place in the template of a place in the composed text, and the detail with the place in the snippet.
    #[must_use]
    pub fn origin(&self, at: Position, detail: String) -> (Position, String) {
        let offset = offset_of(&self.text, at);
        let index = self.pieces.partition_point(|piece| piece.start <= offset).saturating_sub(1);
        let Some(piece) = self.pieces.get(index) else { return (at, detail) };
        let Some(source) = self.sources.get(piece.source) else { return (at, detail) };
        let at = position_of(&source.text, piece.offset + (offset - piece.start.min(offset)));
        match &source.name {
            None => (at, detail),
            Some(name) => (piece.put_in_at, inside(name, at, &detail)),
        }
    }
}

/// The offset of a place in a text; its end for a place that it does not have.
pub(super) fn offset_of(text: &str, at: Position) -> usize {
    let [lines, columns] = [at.line, at.column].map(|number| usize::try_from(number).unwrap_or(1).saturating_sub(1));
    let starts = text.match_indices('\n').map(|(end, _)| end + 1);
    let Some(start) = [0].into_iter().chain(starts).nth(lines) else { return text.len() };
    let rest = text.get(start..).unwrap_or_default();
    start + rest.char_indices().nth(columns).map_or(rest.len(), |(offset, _)| offset)
}

pub(super) fn position_of(text: &str, offset: usize) -> Position {
    Position::START.after(text.get(..offset.min(text.len())).unwrap_or_default())
}

/// What is wrong at a place that is not in the template itself.
fn inside(name: &str, at: Position, detail: &str) -> String {
    format!("in {name}, line {} column {}: {detail}", at.line, at.column)
}

struct PartComposer<'a> {
    part: Part,
    budget: &'a Budget,
    snippets: &'a HashMap<String, Option<String>>,
    composed: Composed,
    /// What goes into each of the sources.
    insertions: Vec<Rc<[Insertion]>>,
    by_name: HashMap<String, usize>,
    /// The snippets that are being put in, outermost first.
    open: Vec<String>,
    includes: usize,
    faults: Vec<TemplateFault>,
}

impl PartComposer<'_> {
    fn run(&mut self, source: &str, layout: Option<Layout<'_>>) -> Result<(), TemplateFault> {
        let body = self.add(None, SourceKind::Fragment, source)?;
        let Some(layout) = layout else { return self.write(body, None, body) };
        let name = format!("the layout `{}`", layout.name);
        let around = self.add(Some(name), SourceKind::Layout, layout.source)?;
        self.write(around, Some(Position::START), body)
    }

    /// Reads a source.
    fn add(&mut self, name: Option<String>, kind: SourceKind, source: &str) -> Result<usize, TemplateFault> {
        let text = plain_lines(source);
        let scanned = scan_source(self.part, kind, &text, self.budget)
            .map_err(|faults| self.first_of(faults, name.as_deref()))?;
        self.composed.sources.push(PieceSource { name, text });
        self.insertions.push(scanned.insertions.into());
        Ok(self.insertions.len() - 1)
    }

    /// All but the last fault are kept here: a template's own faults are all answered.
    fn first_of(&mut self, mut faults: Vec<TemplateFault>, name: Option<&str>) -> TemplateFault {
        let last = faults.pop().unwrap_or_else(|| Problem::syntax("cannot be read").at(self.part, Position::START));
        if let Some(name) = name {
            let detail = inside(name, Position { line: last.line, column: last.column }, &last.detail);
            return TemplateFault { line: 1, column: 1, detail, ..last };
        }
        self.faults.append(&mut faults);
        last
    }

    /// Writes a source with what goes into it. `put_in_at` is the tag of the template that put it in; `None` is the template itself.
    fn write(&mut self, index: usize, put_in_at: Option<Position>, body: usize) -> Result<(), TemplateFault> {
        let Some(insertions) = self.insertions.get(index).cloned() else { return Ok(()) };
        let mut from = 0;
        for insertion in insertions.iter() {
            let at = put_in_at.unwrap_or(insertion.at);
            self.copy(index, from..insertion.span.start, at)?;
            from = insertion.span.end;
            let tag = |composer: &mut Self, text: &str| composer.push(index, insertion.span.start, text, at);
            if insertion.trims_before {
                tag(self, "{%- # %}")?;
            }
            match &insertion.include {
                // Positions in the template are its own, whatever is put around it.
                None => self.write(body, None, body)?,
                Some(include) => {
                    self.includes += 1;
                    if self.includes > INCLUDES {
                        let detail = format!("more than {INCLUDES} snippets in one part");
                        return Err(self.fault(FaultCode::TooManyIncludes, detail, at));
                    }
                    // A parameter holds inside its snippet: what had its name has it again behind. All values are read before
                    // the first name is set: they may name each other.
                    let nth = self.includes;
                    let kept = |prefix, key: &str| kept_name(prefix, nth, key);
                    for (key, value) in &include.parameters {
                        tag(self, &format!("{{% assign {} = {key} %}}", kept(SAVED_NAME, key)))?;
                        tag(self, &format!("{{% assign {} = {value} %}}", kept(GIVEN_NAME, key)))?;
                    }
                    for (key, _) in &include.parameters {
                        tag(self, &format!("{{% assign {key} = {} %}}", kept(GIVEN_NAME, key)))?;
                    }
                    self.include(&include.name, index, insertion.at, at)?;
                    for (key, _) in include.parameters.iter().rev() {
                        tag(self, &format!("{{% assign {key} = {} %}}", kept(SAVED_NAME, key)))?;
                    }
                }
            }
            if insertion.trims_after {
                tag(self, "{% # -%}")?;
            }
        }
        let end = self.composed.sources.get(index).map_or(0, |source| source.text.len());
        self.copy(index, from..end, put_in_at.unwrap_or(Position::START))
    }

    /// Puts in a snippet. `place` is that of the tag in the source where it stands, `at` that of the template's tag.
    fn include(&mut self, name: &str, index: usize, place: Position, at: Position) -> Result<(), TemplateFault> {
        if self.open.iter().any(|open| open == name) {
            let path = self.open.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join("` > `");
            return Err(self.fault(FaultCode::IncludeCycle, format!("a snippet includes itself: `{path}`"), at));
        }
        if self.open.len() >= INCLUDE_DEPTH {
            let detail = format!("snippets include snippets more than {INCLUDE_DEPTH} deep");
            return Err(self.fault(FaultCode::NestingTooDeep, detail, at));
        }
        let snippets = self.snippets;
        let text = match snippets.get(name) {
            Some(Some(text)) => text,
            found => {
                let why = match found {
                    None => format!("there is no snippet `{name}`"),
                    Some(_) => format!("the snippet `{name}` has no text for this part"),
                };
                let origin = self.composed.sources.get(index).and_then(|source| source.name.as_ref());
                let detail = origin.map(|origin| inside(origin, place, &why)).unwrap_or(why);
                let fault = self.fault(FaultCode::UnknownSnippet, detail, at);
                if self.faults.len() + 1 >= FAULTS {
                    return Err(fault);
                }
                self.faults.push(fault);
                return Ok(());
            }
        };
        let included = match self.by_name.get(name) {
            Some(included) => *included,
            None => {
                let included = self.add(Some(format!("the snippet `{name}`")), SourceKind::Fragment, text)?;
                self.by_name.insert(name.to_owned(), included);
                self.composed.used.insert(name.to_owned());
                included
            }
        };
        self.open.push(name.to_owned());
        let written = self.write(included, Some(at), included);
        self.open.pop();
        written
    }

    fn fault(&self, code: FaultCode, detail: String, at: Position) -> TemplateFault {
        Problem::new(code, detail).at(self.part, at)
    }

    /// Copies a stretch of a source.
    fn copy(&mut self, index: usize, span: Range<usize>, at: Position) -> Result<(), TemplateFault> {
        let source = self.composed.sources.get(index);
        let text = source.and_then(|source| source.text.get(span.clone())).unwrap_or_default().to_owned();
        self.push(index, span.start, &text, at)
    }

    fn push(&mut self, source: usize, offset: usize, text: &str, put_in_at: Position) -> Result<(), TemplateFault> {
        if text.is_empty() {
            return Ok(());
        }
        // Before it is written: what snippets make of a short source has no end.
        if self.composed.text.len() + text.len() > SOURCE_BYTES {
            let detail = format!("with its snippets and its layout; at most {SOURCE_BYTES} bytes are allowed");
            return Err(self.fault(FaultCode::SourceTooLarge, detail, put_in_at));
        }
        self.budget
            .take_steps(text_steps(text.len()))
            .map_err(|spent| Problem::from(spent).at(self.part, put_in_at))?;
        self.composed.pieces.push(PieceOrigin { start: self.composed.text.len(), source, offset, put_in_at });
        self.composed.text.push_str(text);
        Ok(())
    }
}
