//! Checks a template when it is saved, so that a campaign does not find out.

use std::collections::BTreeSet;

use runtime::Budget;

use super::TemplateSource;
use super::fault::TemplateFault;
use super::limits::{FAULTS, READING};
use super::message::compile;
use super::names::{KnownFields, NameCheck};
use super::options::{MessageOptions, Sender};
use super::parts::Scanned;
use super::program::{Builder, Context};
use super::warnings::{TemplateWarning, warnings};

/// What a check found out about a sound template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedTemplate {
    /// The merge fields the template uses, sorted.
    pub variables: Vec<String>,
    /// What is no fault and still goes wrong in a mailbox.
    pub warnings: Vec<TemplateWarning>,
}

/// Checks all parts of a template: limits, syntax, structure, names, filters, HTML.
///
/// # Errors
/// Every fault, up to a limit, with its place. A template without faults compiles.
pub fn check(source: &TemplateSource, known: &KnownFields) -> Result<CheckedTemplate, Vec<TemplateFault>> {
    let variables = check_liquid(source, known)?;
    compile(source, &placeholder_options())?;
    Ok(CheckedTemplate { variables, warnings: warnings(source) })
}

/// Checks the Liquid of all parts and reads no HTML: limits, syntax, structure, names and filters. Answers the merge fields, sorted.
///
/// # Errors
/// Every fault, up to a limit, with its place.
pub fn check_liquid(source: &TemplateSource, known: &KnownFields) -> Result<Vec<String>, Vec<TemplateFault>> {
    let scanned = Scanned::of(source, &Budget::new(READING))?;
    let mut variables = BTreeSet::new();
    let mut faults = Vec::new();
    for (part, items) in scanned.parts() {
        let locals = scanned.locals(part);
        NameCheck { part, kind: source.kind, known, locals: &locals, variables: &mut variables, faults: &mut faults }
            .run(items);
        let builder = Builder { part, context: Context::of(part), locals: &locals };
        faults.extend(items.iter().filter_map(|item| builder.fault(item)).take(FAULTS));
    }
    faults.truncate(FAULTS);
    if faults.is_empty() { Ok(variables.into_iter().collect()) } else { Err(faults) }
}

/// Options that make every optional piece appear, so that what compiles here compiles for any sender.
fn placeholder_options() -> MessageOptions {
    MessageOptions {
        sender: Sender { email: "sender@example.com".to_owned(), ..Sender::default() },
        sending_domain: "example.com".to_owned(),
        physical_address: Some("1 Main Street".to_owned()),
        opt_out: true,
        track_links: true,
        track_opens: true,
        ..MessageOptions::default()
    }
}
