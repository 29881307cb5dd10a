//! The footer of marketing mail: postal address and a way to leave (CAN-SPAM §7704(a)(5)). Each of the two is added
//! unless the template certainly shows it itself (in HTML, [`super::html`] decides); where it shows it under a condition, that is
//! seen as the message renders. No style sheet of the template can hide the footer: its own styles are important ones.

use super::escape;
use super::program::prints_markup;
use super::scan::{Item, ItemKind, Shown, Special};
use super::structure::{closes, opens};
use super::syntax::Block;

/// Whether a part shows a field itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shows {
    Always,
    Sometimes,
    Never,
}

fn shows(items: &[Item], field: Shown) -> Shows {
    let mut open = Vec::new();
    let mut found = Shows::Never;
    // A value that is printed as HTML may hide it, which is seen as the message renders.
    let prints_markup = items.iter().filter_map(Item::output).any(prints_markup);
    for item in items {
        if let Some(block) = opens(item) {
            open.push(block);
        } else if closes(item).is_some() {
            open.pop();
        }
        let is_shown = matches!(&item.kind, ItemKind::Output { shows: Some(shown), .. } if *shown == field);
        // What is captured may never be printed.
        if is_shown && !open.contains(&Block::Capture) {
            if open.is_empty() && !prints_markup {
                return Shows::Always;
            }
            found = Shows::Sometimes;
        }
    }
    found
}

/// What shows a field, for a part that does not certainly show it itself.
fn unless_shown(part: &[Item], field: Shown, added: Vec<Item>) -> Vec<Item> {
    match shows(part, field) {
        Shows::Always => Vec::new(),
        Shows::Never => added,
        Shows::Sometimes => vec![Item::special(Special::UnlessShown { field, body: added })],
    }
}

/// The word of the link, for a contact with this locale: `de`, `de-CH` and `de_AT` are all German, what is not known is English.
pub(super) fn unsubscribe_word(locale: Option<&str>) -> &'static str {
    let language = locale.and_then(|locale| locale.split(['-', '_']).next()).unwrap_or_default();
    match language.to_ascii_lowercase().as_str() {
        "de" => "Abmelden",
        "fr" => "Se désabonner",
        "es" => "Darse de baja",
        _ => "Unsubscribe",
    }
}

/// Puts the footer where the HTML part's footer goes. `address`: lines, none of them blank.
pub(super) fn expand_html(items: Vec<Item>, address: &str) -> Vec<Item> {
    let footer = html(&items, address);
    items
        .into_iter()
        .flat_map(|item| if item.kind == ItemKind::Special(Special::Footer) { footer.clone() } else { vec![item] })
        .collect()
}

/// What no rule of the template may change about the footer and what is in it. An important style of the element itself is
/// stronger than any rule of a sheet. `all` resets what is not named; the names are for programs that do not know it, and the
/// styles that are not important for Outlook, which knows no important ones.
const SHOWN: &str = "all:initial!important;visibility:visible!important;opacity:1!important;position:relative!important;\
    top:auto!important;right:auto!important;bottom:auto!important;left:auto!important;z-index:2147483647!important;\
    float:none!important;clip:auto!important;clip-path:none!important;transform:none!important;filter:none!important;\
    text-indent:0!important;overflow:visible!important;height:auto!important;max-height:none!important;\
    content-visibility:visible!important;pointer-events:auto!important;direction:ltr!important;unicode-bidi:isolate!important;\
    mso-hide:none;font-size:12px;font-size:12px!important;line-height:18px;line-height:18px!important;\
    letter-spacing:normal!important;font-family:Arial,Helvetica,sans-serif!important;color:#6b7280;color:#6b7280!important;\
    -webkit-text-fill-color:#6b7280!important";
/// Of the footer as a whole.
const BLOCK: &str = "display:block;display:block!important;clear:both!important;width:auto!important;min-width:200px!important;\
    max-width:600px!important;margin:24px auto 0!important;padding:16px!important;background:#ffffff!important;\
    text-align:center!important";
/// Of the address in it: its own element, since a rule for the first line of the footer would be one for its text.
const ADDRESS: &str = "display:inline;display:inline!important;margin:0!important";
/// Of the link in it.
const LINK: &str = "display:inline;display:inline!important;margin:0!important;text-decoration:underline!important;\
    cursor:pointer!important";

fn html(items: &[Item], address: &str) -> Vec<Item> {
    let lines = escape::to_html(address).replace('\n', "<br>");
    let address = match lines.as_str() {
        "" => Vec::new(),
        lines => vec![Item::text(format!("<span style=\"{SHOWN};{ADDRESS}\">{lines}<br></span>"))],
    };
    let leave = vec![
        Item::text("<a href=\""),
        Item::special(Special::Unsubscribe),
        Item::text(format!("\" style=\"{SHOWN};{LINK}\">")),
        Item::special(Special::UnsubscribeWord),
        Item::text("</a>"),
    ];
    let mut inner = unless_shown(items, Shown::PhysicalAddress, address);
    inner.extend(unless_shown(items, Shown::Unsubscribe, leave));
    if inner.is_empty() {
        return inner;
    }
    let mut footer = vec![Item::text(format!("<div style=\"{SHOWN};{BLOCK}\">"))];
    footer.extend(inner);
    footer.push(Item::text("</div>"));
    footer
}

/// The footer of the text part, to stand at its end. `address`: lines, none of them blank.
pub(super) fn text(items: &[Item], address: &str) -> Vec<Item> {
    let address = if address.is_empty() { Vec::new() } else { vec![Item::text(format!("\n\n{address}"))] };
    let leave = vec![
        Item::text("\n\n"),
        Item::special(Special::UnsubscribeWord),
        Item::text(": "),
        Item::special(Special::Unsubscribe),
    ];
    let mut footer = unless_shown(items, Shown::PhysicalAddress, address);
    footer.extend(unless_shown(items, Shown::Unsubscribe, leave));
    footer
}
