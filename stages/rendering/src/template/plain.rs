//! The text part of a template that brings none: derived once from the HTML source, with its Liquid still in it.
//!
//! Every control tag is kept, in its order, wherever in the HTML it stood (in an attribute, in a style sheet), so that
//! blocks close as they were opened. Outputs are kept where a reader would see them.

use std::cell::RefCell;
use std::rc::Rc;

use lol_html::html_content::{Comment, Element, EndTag, TextChunk, TextType};
use lol_html::{DocumentContentHandlers, rewrite_str};

use super::entities;
use super::escape::is_web_address;
use super::html::{HtmlFault, may_be_web_address, settings};
use super::placeholder::{Placeholders, Segment};
use super::scan::{Item, ItemKind};
use super::structure::{is_balanced, is_control};

/// The text items of these HTML items.
pub(super) fn derive(items: &[Item]) -> Result<Vec<Item>, HtmlFault> {
    let (placeholders, document) = Placeholders::document(items);
    let state =
        Rc::new(RefCell::new(Reader { placeholders, node: String::new(), page: Page::default(), links: Vec::new() }));
    let (on_elements, on_comments, on_text) = (Rc::clone(&state), Rc::clone(&state), Rc::clone(&state));
    let on_element = move |element: &mut Element<'_, '_>| {
        on_elements.borrow_mut().start(element);
        if element.can_have_content() {
            let (reader, name) = (Rc::clone(&on_elements), element.tag_name());
            element.on_end_tag(Box::new(move |_: &mut EndTag<'_>| {
                reader.borrow_mut().end(&name);
                Ok(())
            }))?;
        }
        Ok(())
    };
    let handlers = DocumentContentHandlers::default()
        .comments(move |comment: &mut Comment<'_>| {
            on_comments.borrow_mut().controls(&comment.text());
            Ok(())
        })
        .text(move |chunk: &mut TextChunk<'_>| {
            on_text.borrow_mut().text(chunk);
            Ok(())
        });
    rewrite_str(&document, settings(on_element).append_document_content_handler(handlers))?;
    let mut reader = state.borrow_mut();
    let derived = std::mem::take(&mut reader.page).finish();
    // HTML that ends inside a tag can swallow Liquid. Then the text is the outputs, a line each, rather than a broken tree.
    let controls = |items: &[Item]| items.iter().filter(|item| is_control(item)).count();
    if is_balanced(&derived) && controls(&derived) == controls(items) {
        return Ok(derived);
    }
    let without_html = items.iter().map(|item| match item.kind {
        ItemKind::Text(_) => Item::text("\n"),
        _ => item.clone(),
    });
    Ok(without_html.collect())
}

struct Link {
    target: Vec<Item>,
    /// How much stood on the page when the link began: what came after is its text.
    items: usize,
    text: usize,
}

struct Reader {
    placeholders: Placeholders,
    /// The text node being read: it may arrive in several chunks, cut anywhere.
    node: String,
    page: Page,
    links: Vec<Link>,
}

impl Reader {
    fn start(&mut self, element: &Element<'_, '_>) {
        let name = element.tag_name();
        let href = if name == "a" { element.get_attribute("href") } else { None };
        for attribute in element.attributes() {
            self.controls(&attribute.name());
            let is_printed = href.is_some() && attribute.name() == "href" && self.is_printable(&attribute.value());
            let is_shown = name == "img" && attribute.name() == "alt";
            if !(is_printed || is_shown) {
                self.controls(&attribute.value());
            }
        }
        match name.as_str() {
            "br" => self.page.line_break(),
            "hr" => {
                self.page.gap(2);
                self.page.words("---");
                self.page.gap(2);
            }
            "li" => {
                self.page.gap(1);
                self.page.words("- ");
                self.page.space = true;
            }
            "img" => {
                let alt = element.get_attribute("alt").unwrap_or_default();
                self.visible(&alt);
            }
            "a" => {
                if let Some(href) = href.filter(|href| self.is_printable(href)) {
                    let target = self.placeholders.items(&href);
                    self.links.push(Link { target, items: self.page.items.len(), text: self.page.text.len() });
                }
            }
            block => self.page.gap(gap_around(block)),
        }
    }

    fn end(&mut self, name: &str) {
        match name {
            "a" => {
                if let Some(link) = self.links.pop() {
                    self.page.link(link);
                }
            }
            "td" | "th" => self.page.space = true,
            block => self.page.gap(gap_around(block)),
        }
    }

    fn is_printable(&self, href: &str) -> bool {
        let target = self.placeholders.items(href);
        match target.as_slice() {
            [Item { kind: ItemKind::Text(text), .. }] => {
                let url = entities::decode(text);
                let url = url.trim().to_ascii_lowercase();
                is_web_address(&url) || url.starts_with("mailto:") || url.starts_with("tel:")
            }
            _ => may_be_web_address(&target) && is_balanced(&target),
        }
    }

    fn text(&mut self, chunk: &TextChunk<'_>) {
        self.node.push_str(chunk.as_str());
        if !chunk.last_in_text_node() {
            return;
        }
        let node = std::mem::take(&mut self.node);
        if chunk.text_type() == TextType::Data {
            self.visible(&node);
        } else {
            // Style sheets, scripts, titles.
            self.controls(&node);
        }
    }

    fn visible(&mut self, text: &str) {
        for segment in self.placeholders.segments(text) {
            match segment {
                Segment::Text(text) => self.page.words(&entities::decode(text)),
                Segment::Id(id) => self.placeholders.get(id).iter().for_each(|item| self.page.item(item)),
            }
        }
    }

    fn controls(&mut self, text: &str) {
        if !self.placeholders.occur_in(text) {
            return;
        }
        let items = self.placeholders.items(text);
        items.iter().filter(|item| is_control(item)).for_each(|item| self.page.item(item));
    }
}

/// How many line ends stand between this element and its neighbours.
fn gap_around(name: &str) -> usize {
    match name {
        "p" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "ul" | "ol" | "dl" | "table" | "blockquote" | "pre"
        | "section" | "article" | "header" | "footer" | "main" | "nav" | "aside" | "address" | "figure" | "form" => 2,
        "div" | "tr" | "li" | "dt" | "dd" | "center" | "figcaption" | "body" => 1,
        _ => 0,
    }
}

/// Lays words out: white space collapses, paragraphs stand apart, nothing begins or ends with empty lines.
#[derive(Default)]
struct Page {
    items: Vec<Item>,
    text: String,
    /// Line ends to write before the next word.
    breaks: usize,
    /// A space to write before the next word.
    space: bool,
    /// Line ends written since the last word.
    written: usize,
    started: bool,
}

impl Page {
    fn gap(&mut self, breaks: usize) {
        self.breaks = self.breaks.max(breaks);
        if breaks > 0 {
            self.space = false;
        }
    }

    fn line_break(&mut self) {
        self.breaks = (self.breaks + 1).min(2);
        self.space = false;
    }

    fn flush(&mut self) {
        if self.started {
            let wanted = self.breaks.saturating_sub(self.written);
            for _ in 0..wanted {
                self.text.push('\n');
            }
            self.written += wanted;
            if self.space && self.written == 0 && !self.text.ends_with(' ') {
                self.text.push(' ');
            }
        }
        self.breaks = 0;
        self.space = false;
    }

    fn words(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                // Invisible padding, such as preheaders are filled up with.
                '\u{200B}'..='\u{200F}' | '\u{34F}' | '\u{FEFF}' | '\u{AD}' | '\u{2060}' => {}
                space if space.is_whitespace() => self.space = true,
                letter => {
                    self.flush();
                    self.text.push(letter);
                    self.started = true;
                    self.written = 0;
                }
            }
        }
    }

    fn item(&mut self, item: &Item) {
        // Written before the item, so that the gap is there whichever way a condition goes.
        self.flush();
        self.push_text();
        self.items.push(item.clone());
        if !is_control(item) {
            self.started = true;
            self.written = 0;
        }
    }

    fn push_text(&mut self) {
        if !self.text.is_empty() {
            self.items.push(Item::text(std::mem::take(&mut self.text)));
        }
    }

    /// Writes a link's target after its text, unless the text is the target.
    fn link(&mut self, link: Link) {
        let shown =
            if self.items.len() == link.items { self.text.get(link.text..).unwrap_or_default().trim() } else { "…" };
        let is_bare = shown.is_empty();
        if let [Item { kind: ItemKind::Text(text), .. }] = link.target.as_slice() {
            let url = entities::decode(text).trim().to_owned();
            let short = url.trim_start_matches("mailto:").trim_start_matches("tel:");
            let bare = short.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
            if shown == short || shown == bare || shown == url {
                return;
            }
            let written = if is_bare { short.to_owned() } else { format!(" ({short})") };
            self.literal(&written);
            return;
        }
        self.literal(if is_bare { "" } else { " (" });
        for item in &link.target {
            match &item.kind {
                ItemKind::Text(text) => self.literal(entities::decode(text).trim()),
                _ => self.item(item),
            }
        }
        self.literal(if is_bare { "" } else { ")" });
    }

    /// Text as it is, spaces included.
    fn literal(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let space = self.space;
        self.space = false;
        self.flush();
        self.text.push_str(text);
        self.started = true;
        self.written = 0;
        self.space = space;
    }

    fn finish(mut self) -> Vec<Item> {
        self.text.truncate(self.text.trim_end().len());
        self.push_text();
        self.items
    }
}
