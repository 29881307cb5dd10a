//! Which names a template may use: merge fields, names it sets itself, and nothing else.

use std::collections::{BTreeSet, HashSet};

use super::TemplateKind;
use super::fault::{FaultCode, Part, Problem, TemplateFault};
use super::limits::FAULTS;
use super::scan::{Item, ItemKind};
use super::syntax::{Block, FilterChain, Index, LiquidTag, Operand, Over, Path};

/// The contact's own fields, as `contact.<name>`.
pub(super) const CONTACT_FIELDS: [&str; 10] = [
    "email",
    "first_name",
    "last_name",
    "title",
    "phone",
    "company",
    "timezone",
    "locale",
    "lifecycle_stage",
    "dot_number",
];
/// Those that may be written without `contact.`.
const BARE_FIELDS: [&str; 6] = ["email", "first_name", "last_name", "title", "phone", "company"];
pub(super) const BARE_OTHERS: [&str; 3] = ["unsubscribe_url", "preferences_url", "physical_address"];

/// How names begin that keep what a parameter of a snippet had been before.
pub(super) const SAVED_NAME: &str = "outer__";
/// How names begin that keep what a parameter of a snippet is set to.
pub(super) const GIVEN_NAME: &str = "inner__";

/// The name that keeps a value of a parameter of a part's nth snippet.
pub(super) fn kept_name(prefix: &str, nth: usize, parameter: &str) -> String {
    format!("{prefix}{nth}_{parameter}")
}

/// The parameter of which a name keeps a value, if it is one of [`kept_name`].
fn parameter_kept_by<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    let (nth, parameter) = name.strip_prefix(prefix)?.split_once('_')?;
    nth.parse::<usize>().is_ok().then_some(parameter)
}

/// The fields a tenant has defined for its contacts.
#[derive(Debug, Clone, Default)]
pub struct KnownFields {
    /// Keys that may be used as `contact.fields.<key>`.
    pub custom: HashSet<String>,
}

/// Names a part sets itself.
#[derive(Debug, Default)]
pub(super) struct Locals {
    assigned: HashSet<String>,
    captured: HashSet<String>,
    loops: HashSet<String>,
    /// Parameters of snippets, which hold inside these only.
    parameters: HashSet<String>,
}

impl Locals {
    pub(super) fn collect<'i>(items: impl IntoIterator<Item = &'i Item>) -> Self {
        let mut locals = Self::default();
        for item in items {
            match &item.kind {
                ItemKind::Tag(tag @ LiquidTag::Assign(name, _)) => {
                    let is_parameter = parameter_set(tag).is_some();
                    let names = if is_parameter { &mut locals.parameters } else { &mut locals.assigned };
                    names.insert(name.clone())
                }
                ItemKind::Tag(LiquidTag::Capture(name)) => locals.captured.insert(name.clone()),
                ItemKind::Tag(LiquidTag::For(read)) => locals.loops.insert(read.variable.clone()),
                _ => false,
            };
        }
        locals
    }

    /// Whether printing this name prints text that was escaped when it was captured, whatever happened before.
    pub(super) fn is_escaped(&self, name: &str) -> bool {
        self.captured.contains(name) && !self.is_ambiguous(name)
    }

    /// A captured name holds escaped text. If it could hold a plain value too, printing it could not be safe and right.
    fn is_ambiguous(&self, name: &str) -> bool {
        self.assigned.contains(name)
            || self.parameters.contains(name)
            || self.loops.contains(name)
            || BARE_FIELDS.contains(&name)
            || BARE_OTHERS.contains(&name)
            || name == "event"
    }
}

/// Checks the names of one part and collects the merge fields it uses.
pub(super) struct NameCheck<'a> {
    pub(super) part: Part,
    pub(super) kind: TemplateKind,
    pub(super) known: &'a KnownFields,
    pub(super) locals: &'a Locals,
    pub(super) variables: &'a mut BTreeSet<String>,
    pub(super) faults: &'a mut Vec<TemplateFault>,
}

impl NameCheck<'_> {
    pub(super) fn run(&mut self, items: &[Item]) {
        // Names that hold inside a loop only, innermost last.
        let mut scopes: Vec<String> = Vec::new();
        // Parameters of the snippets that an item stands in, innermost last.
        let mut parameters: Vec<&str> = Vec::new();
        for item in items {
            let mut paths = Vec::new();
            match &item.kind {
                ItemKind::Output { chain, .. } => chain_paths(chain, &mut paths),
                // Keeping a value uses no field.
                ItemKind::Tag(LiquidTag::Assign(name, _)) if name.starts_with(SAVED_NAME) => {}
                ItemKind::Tag(tag) => match parameter_set(tag) {
                    None => tag_paths(tag, &mut paths),
                    Some((name, false)) => parameters.push(name),
                    Some((_, true)) => {
                        parameters.pop();
                    }
                },
                ItemKind::Text(_) | ItemKind::Special(_) => {}
            }
            for path in paths {
                if let Err(problem) = self.path(path, &scopes, &parameters) {
                    self.fault(problem, item);
                }
            }
            match &item.kind {
                ItemKind::Tag(LiquidTag::For(read)) => scopes.push(read.variable.clone()),
                // Within the loop, the loop's variable would hide the parameter.
                ItemKind::Tag(LiquidTag::Assign(name, _)) if is_saved_from(name, &scopes) => {
                    let detail =
                        "a parameter of a snippet has the name of the variable of the `for` around it; use two names";
                    self.fault(Problem::new(FaultCode::NameConflict, detail), item);
                }
                ItemKind::Tag(LiquidTag::End(Block::For)) => drop(scopes.pop()),
                ItemKind::Tag(LiquidTag::Capture(name)) if self.locals.is_ambiguous(name) => {
                    let detail = format!(
                        "`{name}` is set by `capture` and is also a merge field, assigned or a loop variable; use two names"
                    );
                    self.fault(Problem::new(FaultCode::NameConflict, detail), item);
                }
                _ => {}
            }
        }
    }

    fn fault(&mut self, problem: Problem, item: &Item) {
        if self.faults.len() < FAULTS {
            self.faults.push(problem.at(self.part, item.at));
        }
    }

    fn path(&mut self, path: &Path, scopes: &[String], parameters: &[&str]) -> Result<(), Problem> {
        let root = path.root.as_str();
        let in_scope = scopes.iter().any(|name| name == root);
        if in_scope || self.locals.captured.contains(root) {
            return Ok(());
        }
        if root == "forloop" {
            return if scopes.is_empty() { Err(unknown("forloop", "exists only inside `for`")) } else { Ok(()) };
        }
        let written = display(path);
        match self.merge_field(path) {
            Ok(()) => {
                self.variables.insert(written);
                Ok(())
            }
            Err(_) if self.locals.assigned.contains(root) || parameters.contains(&root) => Ok(()),
            Err(why) => Err(unknown(&written, why)),
        }
    }

    fn merge_field(&self, path: &Path) -> Result<(), &'static str> {
        let keys = path.rest.iter().map(|index| match index {
            Index::Key(key) => Some(key.as_str()),
            Index::Number(_) | Index::Computed(_) => None,
        });
        let keys: Vec<Option<&str>> = keys.collect();
        match (path.root.as_str(), keys.as_slice()) {
            ("data", _) if self.kind != TemplateKind::Transactional => Err("exists only in transactional templates"),
            ("data", []) => Err("needs a key, as in `data.order_id`"),
            ("data", _) => Ok(()),
            ("event", _) if self.kind != TemplateKind::Sequence => Err("exists only in templates of sequences"),
            ("event", [Some("name" | "occurred_at")] | [Some("properties"), _, ..]) => Ok(()),
            ("event", _) => Err("is not `event.name`, `event.occurred_at` or `event.properties.<key>`"),
            ("contact", [Some("fields"), Some(key), ..]) if self.known.custom.contains(*key) => Ok(()),
            ("contact", [Some("fields"), Some(_), ..]) => Err("is not a field this tenant has defined"),
            (_, keys) if keys.contains(&None) => Err("cannot be indexed"),
            ("contact", [Some(field)] | [Some(field), Some("size")]) if CONTACT_FIELDS.contains(field) => Ok(()),
            ("sender", [Some("name" | "email" | "reply_to")]) => Ok(()),
            ("campaign" | "tenant", [Some("id" | "name")]) => Ok(()),
            (bare, [] | [Some("size")]) if BARE_FIELDS.contains(&bare) || BARE_OTHERS.contains(&bare) => Ok(()),
            _ => Err("is not a merge field and is not set in the template"),
        }
    }
}

/// The parameter of a snippet that a tag of the engine's sets, and whether to what it had been before.
fn parameter_set(tag: &LiquidTag) -> Option<(&str, bool)> {
    let LiquidTag::Assign(name, FilterChain { entry: Operand::Path(Path { root, .. }), .. }) = tag else { return None };
    let is_kept = |prefix| parameter_kept_by(root, prefix) == Some(name);
    let is_restored = is_kept(SAVED_NAME);
    (is_restored || is_kept(GIVEN_NAME)).then_some((name.as_str(), is_restored))
}

/// Whether the name keeps what a parameter had been before, and the parameter is named as one of these.
fn is_saved_from(name: &str, scopes: &[String]) -> bool {
    parameter_kept_by(name, SAVED_NAME).is_some_and(|parameter| scopes.iter().any(|scope| scope == parameter))
}

fn unknown(name: &str, why: &str) -> Problem {
    Problem::new(FaultCode::UnknownVariable, format!("`{name}` {why}"))
}

fn display(path: &Path) -> String {
    let rest = path.rest.iter().map(|index| match index {
        Index::Key(key) => format!(".{key}"),
        Index::Number(number) => format!("[{number}]"),
        Index::Computed(_) => "[…]".to_owned(),
    });
    std::iter::once(path.root.clone()).chain(rest).collect()
}

fn operand_paths<'a>(operand: &'a Operand, paths: &mut Vec<&'a Path>) {
    if let Operand::Path(path) = operand {
        paths.push(path);
        for index in &path.rest {
            if let Index::Computed(inner) = index {
                operand_paths(inner, paths);
            }
        }
    }
}

fn chain_paths<'a>(chain: &'a FilterChain, paths: &mut Vec<&'a Path>) {
    operand_paths(&chain.entry, paths);
    for argument in chain.filters.iter().flat_map(|filter| &filter.arguments) {
        operand_paths(argument, paths);
    }
}

fn tag_paths<'a>(tag: &'a LiquidTag, paths: &mut Vec<&'a Path>) {
    match tag {
        LiquidTag::If(condition) | LiquidTag::Unless(condition) | LiquidTag::Elsif(condition) => {
            for test in condition.iter().flatten() {
                operand_paths(&test.left, paths);
                if let Some((_, right)) = &test.right {
                    operand_paths(right, paths);
                }
            }
        }
        LiquidTag::Case(value) => operand_paths(value, paths),
        LiquidTag::When(values) => values.iter().for_each(|value| operand_paths(value, paths)),
        LiquidTag::Assign(_, chain) => chain_paths(chain, paths),
        LiquidTag::For(read) => {
            if let Over::Value(value) = &read.over {
                operand_paths(value, paths);
            }
            [&read.limit, &read.offset].into_iter().flatten().for_each(|value| operand_paths(value, paths));
        }
        LiquidTag::Else | LiquidTag::Capture(_) | LiquidTag::Break | LiquidTag::Continue | LiquidTag::End(_) => {}
    }
}
