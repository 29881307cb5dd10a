//! The footer of marketing mail: postal address and a way to leave (CAN-SPAM §7704(a)(5)). Each of the two is added
//! only where the template does not show it itself; where it shows it under a condition, that is seen as the message
//! renders.

use super::escape;
use super::program::shown;
use super::scan::{Item, ItemKind, Shown, Special};
use super::structure::{closes, opens};
use super::syntax::{Block, Tag};

/// Whether a part shows a field itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shows {
    Always,
    Sometimes,
    Never,
}

fn shows(items: &[Item], field: Shown) -> Shows {
    let mut depth = 0usize;
    let mut found = Shows::Never;
    for item in items {
        if opens(item).is_some() {
            depth += 1;
        } else if closes(item).is_some() {
            depth = depth.saturating_sub(1);
        }
        if let ItemKind::Output(chain) = &item.kind
            && shown(chain) == Some(field)
        {
            if depth == 0 {
                return Shows::Always;
            }
            found = Shows::Sometimes;
        }
    }
    found
}

/// Wraps what is shown only if the template does not show the field.
fn unless_shown(shows: Shows, field: Shown, items: Vec<Item>) -> Vec<Item> {
    match shows {
        Shows::Always => Vec::new(),
        Shows::Never => items,
        Shows::Sometimes => {
            let mut wrapped = vec![Item::special(Special::UnlessShown(field))];
            wrapped.extend(items);
            wrapped.push(Item::tag(Tag::End(Block::UnlessShown)));
            wrapped
        }
    }
}

/// Puts the footer where the HTML part's footer goes.
pub(super) fn expand_html(items: Vec<Item>, address: Option<&str>) -> Vec<Item> {
    let footer = html(&items, address);
    items
        .into_iter()
        .flat_map(|item| if item.kind == ItemKind::Special(Special::Footer) { footer.clone() } else { vec![item] })
        .collect()
}

fn html(items: &[Item], address: Option<&str>) -> Vec<Item> {
    let address: Vec<Item> = address
        .map(|address| {
            let lines: Vec<String> =
                address.lines().map(str::trim).filter(|line| !line.is_empty()).map(escape::to_html).collect();
            Item::text(format!("<div>{}</div>", lines.join("<br>")))
        })
        .into_iter()
        .collect();
    let leave = vec![
        Item::text("<div><a href=\""),
        Item::special(Special::Unsubscribe),
        Item::text("\" style=\"color:#6b7280;text-decoration:underline\">Unsubscribe</a></div>"),
    ];
    let mut inner = unless_shown(shows(items, Shown::PhysicalAddress), Shown::PhysicalAddress, address);
    inner.extend(unless_shown(shows(items, Shown::Unsubscribe), Shown::Unsubscribe, leave));
    if inner.is_empty() {
        return inner;
    }
    let mut footer = vec![Item::text(
        "<div style=\"margin:24px auto 0;padding:16px;max-width:600px;font-family:Arial,Helvetica,sans-serif;font-size:12px;line-height:18px;color:#6b7280;text-align:center\">",
    )];
    footer.extend(inner);
    footer.push(Item::text("</div>"));
    footer
}

/// The footer of the text part, to stand at its end.
pub(super) fn text(items: &[Item], address: Option<&str>) -> Vec<Item> {
    let address = address
        .map(|address| {
            let lines: Vec<&str> = address.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            Item::text(format!("\n\n{}", lines.join("\n")))
        })
        .into_iter()
        .collect();
    let leave = vec![Item::text("\n\nUnsubscribe: "), Item::special(Special::Unsubscribe)];
    let mut footer = unless_shown(shows(items, Shown::PhysicalAddress), Shown::PhysicalAddress, address);
    footer.extend(unless_shown(shows(items, Shown::Unsubscribe), Shown::Unsubscribe, leave));
    footer
}
