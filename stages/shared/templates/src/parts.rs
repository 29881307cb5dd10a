//! From source to the items of each part, with everything the engine adds already in them.

use runtime::{Budget, Spent};

use super::TemplateSource;
use super::escape;
use super::fault::{Part, Position, Problem, TemplateFault};
use super::footer;
use super::html::{self, Inserts};
use super::names::Locals;
use super::options::MessageOptions;
use super::plain;
use super::program::Context;
use super::scan::{Item, ItemKind, Special, scan};
use super::sheet::RootStyles;
use super::structure;

/// The scanned source of each part.
pub(super) struct Scanned {
    pub(super) subject: Vec<Item>,
    pub(super) preheader: Vec<Item>,
    pub(super) html: Vec<Item>,
    pub(super) text: Option<Vec<Item>>,
}

impl Scanned {
    /// Scans all parts and checks their structure.
    pub(super) fn of(source: &TemplateSource, budget: &Budget) -> Result<Self, Vec<TemplateFault>> {
        let mut faults = Vec::new();
        let mut read = |part, text: &str| {
            let items = scan(part, text, budget).unwrap_or_else(|found| {
                faults.extend(found);
                Vec::new()
            });
            faults.extend(structure::faults(part, &items));
            items
        };
        let subject = read(Part::Subject, &source.subject);
        let preheader = read(Part::Preheader, source.preheader.as_deref().unwrap_or_default());
        let html = read(Part::BodyHtml, &source.body_html);
        let text =
            source.body_text.as_deref().filter(|text| !text.trim().is_empty()).map(|text| read(Part::BodyText, text));
        if faults.is_empty() { Ok(Self { subject, preheader, html, text }) } else { Err(faults) }
    }

    /// Each part with its own items, in the order they are checked.
    pub(super) fn parts(&self) -> Vec<(Part, &[Item])> {
        let mut parts: Vec<(Part, &[Item])> =
            vec![(Part::Subject, &self.subject), (Part::Preheader, &self.preheader), (Part::BodyHtml, &self.html)];
        parts.extend(self.text.as_deref().map(|text| (Part::BodyText, text)));
        parts
    }

    /// The names a part sets. The preheader runs with the HTML it stands in.
    pub(super) fn locals(&self, part: Part) -> Locals {
        match part {
            Part::Subject => Locals::collect(&self.subject),
            Part::Preheader | Part::BodyHtml => Locals::collect(self.preheader.iter().chain(&self.html)),
            Part::BodyText => Locals::collect(self.text.iter().flatten()),
        }
    }
}

/// One part, ready to be cut into text and slots.
pub(super) struct Prepared {
    pub(super) part: Part,
    pub(super) context: Context,
    pub(super) items: Vec<Item>,
    pub(super) locals: Locals,
}

/// The parts of a whole message.
pub(super) struct PreparedMessage {
    pub(super) subject: Prepared,
    pub(super) text: Prepared,
    pub(super) html: Prepared,
    /// The styles around the footer, if there is one.
    pub(super) styles: Option<RootStyles>,
}

/// Prepares the parts of a message.
pub(super) fn prepare(
    scanned: Scanned,
    options: &MessageOptions,
    budget: &Budget,
) -> Result<PreparedMessage, Vec<TemplateFault>> {
    let html_locals = scanned.locals(Part::BodyHtml);
    let lines = options.physical_address.iter().flat_map(|address| address.lines()).map(str::trim);
    let address = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    let text = prepare_text(&scanned, options, &address, budget)?;
    let inserts =
        Inserts { start: preheader(&scanned.preheader), end: html_end(options), track_links: options.track_links };
    let (items, styles) = html::rewrite(&scanned.html, inserts, budget).map_err(|fault| vec![fault])?;
    let items = footer::expand_html(items, &address);
    let locals = scanned.locals(Part::Subject);
    let subject = Prepared { part: Part::Subject, context: Context::Plain, items: scanned.subject, locals };
    Ok(PreparedMessage {
        subject,
        text,
        html: Prepared { part: Part::BodyHtml, context: Context::Html, items, locals: html_locals },
        styles: options.opt_out.then_some(styles),
    })
}

pub(super) fn too_complex(spent: Spent) -> TemplateFault {
    Problem::from(spent).at(Part::BodyHtml, Position::START)
}

fn prepare_text(
    scanned: &Scanned,
    options: &MessageOptions,
    address: &str,
    budget: &Budget,
) -> Result<Prepared, Vec<TemplateFault>> {
    let (part, context, mut items) = match &scanned.text {
        Some(items) => (Part::BodyText, Context::Plain, items.clone()),
        None => {
            let derived = plain::derive(&scanned.html, budget).map_err(|spent| vec![too_complex(spent)])?;
            (Part::BodyHtml, Context::PlainFromHtml, derived)
        }
    };
    if options.opt_out {
        items.extend(footer::text(&items, address));
    }
    Ok(Prepared { part, context, items, locals: scanned.locals(part) })
}

/// Invisible text after the preheader, so that mail programs do not fill the preview with the start of the body.
const PADDING: usize = 60;

fn preheader(items: &[Item]) -> Vec<Item> {
    if items.is_empty() {
        return Vec::new();
    }
    let mut hidden = vec![Item::text(
        "<div style=\"display:none;max-height:0;max-width:0;overflow:hidden;opacity:0;font-size:1px;line-height:1px;color:#ffffff;mso-hide:all\">",
    )];
    // The preheader is text, not HTML, and what it prints shows nothing: it is hidden.
    hidden.extend(items.iter().map(|item| match &item.kind {
        ItemKind::Text(text) => Item::text(escape::to_html(text)),
        ItemKind::Output { chain, place, .. } => {
            Item { kind: ItemKind::Output { chain: chain.clone(), place: *place, shows: None }, at: item.at }
        }
        _ => item.clone(),
    }));
    hidden.push(Item::text(format!("{}</div>", "&#847;&zwnj;&nbsp;".repeat(PADDING))));
    hidden
}

fn html_end(options: &MessageOptions) -> Vec<Item> {
    let mut end = Vec::new();
    if options.track_opens {
        end.push(Item::text("<img src=\""));
        end.push(Item::special(Special::OpenPixel));
        end.push(Item::text(
            "\" width=\"1\" height=\"1\" alt=\"\" style=\"display:block!important;width:1px!important;height:1px!important;border:0\">",
        ));
    }
    // Last, so that nothing can be put over it.
    if options.opt_out {
        end.push(Item::special(Special::Footer));
    }
    end
}
