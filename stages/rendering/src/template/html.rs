//! The work on HTML that is done once per template: tracked links, the open pixel, the preheader, the place of the
//! footer. A streaming rewriter is used, since a tree builder would move what stands between table rows.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lol_html::errors::RewritingError;
use lol_html::html_content::{Comment, ContentType, DocumentEnd, Element, EndTag};
use lol_html::{DocumentContentHandlers, ElementContentHandlers, RewriteStrSettings, Selector, rewrite_str};

use super::entities;
use super::escape::{has_prefix, is_web_address};
use super::placeholder::{Placeholders, Segment};
use super::program::shown;
use super::scan::{Item, ItemKind, Shown, Special};
use super::structure::is_balanced;
use super::syntax::{Block, Operand, Tag};

/// What to put into the document.
pub(super) struct Inserts {
    /// At the start of the body.
    pub(super) start: Vec<Item>,
    /// At the end of the body.
    pub(super) end: Vec<Item>,
    /// Whether links are replaced by tracked ones.
    pub(super) track_links: bool,
}

/// Why the HTML could not be rewritten.
#[derive(Debug, thiserror::Error)]
#[error("the HTML cannot be processed")]
pub(super) struct HtmlFault(#[from] RewritingError);

/// Where the start of the body is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Body,
    AfterHead,
    /// There is no body and no head: at this byte.
    At(usize),
}

struct Rewriter {
    placeholders: Placeholders,
    links: u16,
    track_links: bool,
}

/// Rewrites the items of an HTML part. Answers the new items; every Liquid tag is still there, in its order.
pub(super) fn rewrite(items: &[Item], inserts: Inserts) -> Result<Vec<Item>, HtmlFault> {
    let (mut placeholders, mut document) = Placeholders::document(items);
    let start = find_start(&document)?;
    let start_word = if inserts.start.is_empty() { String::new() } else { placeholders.add(inserts.start) };
    let end_word = placeholders.add(inserts.end);
    if let Start::At(at) = start {
        document.insert_str(at, &start_word);
    }
    let state = RefCell::new(Rewriter { placeholders, links: 0, track_links: inserts.track_links });
    let ended = Rc::new(Cell::new(false));
    let ended_at_end = Rc::clone(&ended);
    let end_of_document = end_word.clone();
    let on_element = |element: &mut Element<'_, '_>| {
        state.borrow_mut().element(element);
        let name = element.tag_name();
        if name == "head" && start == Start::AfterHead {
            let word = start_word.clone();
            element.on_end_tag(Box::new(move |end: &mut EndTag<'_>| {
                end.after(&word, ContentType::Html);
                Ok(())
            }))?;
        }
        if name == "body" {
            if start == Start::Body {
                element.prepend(&start_word, ContentType::Html);
            }
            let (word, ended) = (end_word.clone(), Rc::clone(&ended));
            element.on_end_tag(Box::new(move |end: &mut EndTag<'_>| {
                end.before(&word, ContentType::Html);
                ended.set(true);
                Ok(())
            }))?;
        }
        Ok(())
    };
    let settings = settings(on_element).append_document_content_handler(
        DocumentContentHandlers::default()
            .comments(|comment: &mut Comment<'_>| {
                state.borrow_mut().comment(&comment.text());
                Ok(())
            })
            .end(move |end: &mut DocumentEnd<'_>| {
                if !ended_at_end.get() {
                    end.append(&end_of_document, ContentType::Html);
                }
                Ok(())
            }),
    );
    let rewritten = rewrite_str(&document, settings)?;
    Ok(state.into_inner().placeholders.items(&rewritten))
}

/// Settings with one handler for all elements.
pub(super) fn settings<'h>(
    on_element: impl FnMut(&mut Element<'_, '_>) -> lol_html::HandlerResult + 'h,
) -> RewriteStrSettings<'h, 'static> {
    let mut settings = RewriteStrSettings::new().with_strict(false).with_enable_esi_tags(false);
    // `*` is a selector; should it ever not be, nothing is rewritten rather than everything lost.
    if let Ok(all) = "*".parse::<Selector>() {
        let handlers = ElementContentHandlers::default().element(on_element);
        settings = settings.append_element_content_handler((std::borrow::Cow::Owned(all), handlers));
    }
    settings
}

fn find_start(document: &str) -> Result<Start, HtmlFault> {
    let (body, head) = (Cell::new(false), Cell::new(false));
    let on_element = |element: &mut Element<'_, '_>| {
        match element.tag_name().as_str() {
            "body" => body.set(true),
            "head" => head.set(true),
            _ => {}
        }
        Ok(())
    };
    rewrite_str(document, settings(on_element))?;
    Ok(if body.get() {
        Start::Body
    } else if head.get() {
        Start::AfterHead
    } else {
        Start::At(after_prologue(document))
    })
}

/// Past a document type and an `<html>` tag.
fn after_prologue(document: &str) -> usize {
    let mut at = 0;
    for opening in ["<!doctype", "<html"] {
        let rest = document.get(at..).unwrap_or_default();
        let trimmed = rest.trim_start();
        if has_prefix(trimmed, opening)
            && let Some(end) = trimmed.find('>')
        {
            at += rest.len() - trimmed.len() + end + 1;
        }
    }
    at
}

impl Rewriter {
    fn element(&mut self, element: &mut Element<'_, '_>) {
        let name = element.tag_name();
        if name == "a" || name == "area" {
            self.link(element);
        }
        // An unquoted value would end at the first space of what is put in. Setting it again quotes it.
        let dynamic: Vec<(String, String)> = element
            .attributes()
            .iter()
            .map(|attribute| (attribute.name(), attribute.value()))
            .filter(|(_, value)| self.placeholders.occur_in(value) && !value.contains(['"', '\'']))
            .collect();
        for (name, value) in dynamic {
            // Fails only for names HTML does not allow; then the attribute stays as its author wrote it.
            let _ = element.set_attribute(&name, &value);
        }
    }

    fn link(&mut self, element: &mut Element<'_, '_>) {
        let Some(href) = element.get_attribute("href") else { return };
        if element.has_attribute("data-no-track") {
            element.remove_attribute("data-no-track");
            return;
        }
        let number = self.links;
        let Some(next) = number.checked_add(1) else { return };
        let target = self.placeholders.items(&href);
        if !self.track_links {
            return;
        }
        if let Some(items) = tracked(&target, number) {
            let word = self.placeholders.add(items);
            self.links = next;
            // `href` is an allowed name.
            let _ = element.set_attribute("href", &word);
        }
    }

    /// Outputs in comments show nothing to the reader.
    fn comment(&mut self, text: &str) {
        let ids: Vec<usize> = self
            .placeholders
            .segments(text)
            .iter()
            .filter_map(|segment| match segment {
                Segment::Id(id) => Some(*id),
                Segment::Text(_) => None,
            })
            .collect();
        for id in ids {
            for item in self.placeholders.get_mut(id).into_iter().flatten() {
                item.kind = match std::mem::replace(&mut item.kind, ItemKind::Text(String::new())) {
                    ItemKind::Output(chain) => ItemKind::Unseen(chain),
                    kind => kind,
                };
            }
        }
    }
}

/// The items of a tracked link with this target. `None`: not a link to track.
fn tracked(target: &[Item], link: u16) -> Option<Vec<Item>> {
    if let [Item { kind: ItemKind::Text(text), .. }] = target {
        let url = entities::decode(text).trim().to_owned();
        return is_web_address(&url).then(|| vec![Item::special(Special::Click { link, url })]);
    }
    if !may_be_web_address(target) || !is_balanced(target) || target.iter().any(is_own_page) {
        return None;
    }
    let mut items = vec![Item::special(Special::LinkStart { link })];
    items.extend_from_slice(target);
    items.push(Item::tag(Tag::End(Block::Link)));
    Some(items)
}

/// Whether a target that is rendered can turn out to be a web address, judging by how it begins.
pub(super) fn may_be_web_address(target: &[Item]) -> bool {
    let has_quotes = target.iter().any(|item| matches!(&item.kind, ItemKind::Text(text) if text.contains(['"', '\''])));
    let begins = match target.first().map(|item| &item.kind) {
        Some(ItemKind::Text(text)) => {
            let text = entities::decode(text);
            let text = text.trim_start();
            text.is_empty() || is_web_address(text) || has_prefix("https://", text) || has_prefix("http://", text)
        }
        Some(_) => true,
        None => false,
    };
    begins && !has_quotes
}

/// Whether an item prints a page of ours, which is never tracked.
fn is_own_page(item: &Item) -> bool {
    let ItemKind::Output(chain) = &item.kind else { return false };
    shown(chain) == Some(Shown::Unsubscribe)
        || matches!(&chain.entry, Operand::Path(path) if path.root == "preferences_url")
}
