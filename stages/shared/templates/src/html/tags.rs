//! Tags: which elements they open and close, and what may stand in their attributes.

use super::super::elements::is_plain;
use super::super::fault::TemplateFault;
use super::super::markup::{Attribute, DocumentSpan, HtmlTag, is_void};
use super::super::program::shown;
use super::super::scan::{Place, Shown};
use super::{Leave, Rewriter, Spot};

impl Rewriter<'_> {
    pub(super) fn start_tag(&mut self, tag: &HtmlTag<'_>) -> Result<(), TemplateFault> {
        if self.placeholders.occur_in(tag.name) {
            return Err(self.misplaced(tag.span.start));
        }
        let name = tag.name.to_ascii_lowercase();
        let (mut is_plain_element, mut is_leave) = (true, None);
        let is_tracked = self.track_links
            && self.view.hidden.is_none()
            && !tag.attributes.iter().any(|attribute| self.name_of(attribute) == "data-no-track");
        self.check_loads(tag, &name)?;
        for (index, attribute) in tag.attributes.iter().enumerate() {
            for id in self.placeholders.ids(attribute.name.text) {
                if self.placeholders.get(id).iter().any(|item| item.output().is_some()) {
                    return Err(self.misplaced(attribute.name.start));
                }
                self.item(id, Spot { token: self.tokens, attribute: 0 }, Place::Quoted)?;
            }
            let attribute_name = self.name_of(attribute);
            if attribute_name.starts_with("shadowroot") {
                let detail = "a shadow root is not available in mail: it hides what is in its element";
                return Err(self.refused(attribute.name.start, detail));
            }
            // With Liquid in it, it stays: a block may begin or end there.
            let has_liquid = [attribute.name, attribute.value].iter().any(|span| self.placeholders.occur_in(span.text));
            if attribute_name == "data-no-track" && matches!(name.as_str(), "a" | "area") && !has_liquid {
                self.leave_out(attribute);
                continue;
            }
            let value = attribute.value.text;
            let ids = self.placeholders.ids(value);
            for id in &ids {
                self.item(*id, Spot { token: self.tokens, attribute: index + 1 }, Place::Quoted)?;
            }
            let is_own = name == "a" && attribute_name == "href" && ids.len() == 1 && self.is_unsubscribe(value);
            if is_own {
                is_leave = ids.first().copied();
            } else {
                let value = ids.is_empty().then_some(value);
                let is_plain = is_plain(&attribute_name, value);
                is_plain_element &= is_plain;
                // What a value moves may cover what stands elsewhere.
                self.is_doubtful |= self.is_fragment && attribute_name == "style" && !is_plain;
            }
            if attribute_name == "style" {
                self.check_style(attribute, matches!(name.as_str(), "html" | "body"))?;
            }
            self.value(&name, &attribute_name, attribute, is_tracked)?;
        }
        self.count_element(tag, name, is_plain_element, is_leave)
    }

    /// An attribute's name without the Liquid that is written against it.
    pub(super) fn name_of(&self, attribute: &Attribute<'_>) -> String {
        self.placeholders.without(attribute.name.text).to_ascii_lowercase()
    }

    fn is_unsubscribe(&self, value: &str) -> bool {
        match self.placeholders.items(value.trim()).as_slice() {
            [item] => item.output().and_then(shown) == Some(Shown::Unsubscribe),
            _ => false,
        }
    }

    /// Opens an element.
    fn count_element(
        &mut self,
        tag: &HtmlTag<'_>,
        name: String,
        is_plain_element: bool,
        leave: Option<usize>,
    ) -> Result<(), TemplateFault> {
        self.is_doubtful |= matches!(name.as_str(), "style" | "link" | "script" | "dialog");
        if matches!(name.as_str(), "html" | "body") {
            return self.root_tag(tag, &name, is_plain_element);
        }
        let is_hidden = self.view.hidden.is_some();
        self.starts.prologue_ended |= !is_hidden;
        // In the markup of Outlook, as in XML, elements such as `<v:fill/>` close themselves.
        let closes_itself = self.elements.is_foreign(&name) || (is_hidden && name.contains(':'));
        if is_void(&name) || (tag.is_self_closing && closes_itself) {
            return Ok(());
        }
        if name == "form" && self.elements.is_in("form") {
            return Err(self.misplaced_form(tag.span.start));
        }
        self.elements.open(&name, is_plain_element, self.base(), self.view.label);
        if name == "a" {
            let is_visible = self.is_plain() && !self.is_captured();
            let (elements, branch) = (self.elements.len(), self.branch());
            self.leave = leave.filter(|_| is_visible).map(|id| Leave { id, elements, branch, has_text: false });
        }
        Ok(())
    }

    /// `<html>` and `<body>` are never closed before the end; what hides them hides everything.
    fn root_tag(&mut self, tag: &HtmlTag<'_>, name: &str, is_plain_element: bool) -> Result<(), TemplateFault> {
        self.is_doubtful |= !is_plain_element;
        for attribute in &tag.attributes {
            let attribute_name = self.name_of(attribute);
            if matches!(attribute_name.as_str(), "hidden" | "inert" | "popover") {
                return Err(self.refused(attribute.name.start, format!("`{name}` cannot be hidden")));
            }
            self.note_root(attribute_name, attribute);
        }
        if self.view.hidden.is_some() {
            return Ok(());
        }
        self.copy(tag.span.end());
        if name == "body" {
            self.elements.end_head();
            self.starts.body.get_or_insert(self.out.len());
            self.starts.prologue_ended = true;
        } else if !self.starts.prologue_ended {
            self.starts.prologue = self.out.len();
        }
        Ok(())
    }

    pub(super) fn end_tag(&mut self, name: &str, span: DocumentSpan<'_>) -> Result<(), TemplateFault> {
        if matches!(name, "body" | "html") {
            if self.end.is_none() && self.blocks.is_empty() && self.view.label == 0 {
                self.copy(span.start);
                self.end = Some(self.out.len());
            }
            return Ok(());
        }
        self.end = None;
        if name == "a"
            && let Some(leave) = self.leave.take()
            && leave.has_text
            && leave.elements == self.elements.len()
            && leave.branch == self.branch()
        {
            self.shown.push((leave.id, Shown::Unsubscribe));
        }
        if name == "form" && self.elements.is_in("form") && !self.elements.ends_form() {
            return Err(self.misplaced_form(span.start));
        }
        let looked = self.elements.close(name, self.base(), self.view.label);
        self.charge(looked as u64, span.start)?;
        if name == "head" && self.starts.head.is_none() && self.view.hidden.is_none() {
            self.copy(span.end());
            self.starts.head = Some(self.out.len());
        }
        Ok(())
    }

    /// Charges for work on what stands there.
    pub(super) fn charge(&self, steps: u64, at: usize) -> Result<(), TemplateFault> {
        self.budget.take_steps(steps).map_err(|spent| self.fault(at, spent.into()))
    }

    /// A form that cannot be ended any more, since a browser has forgotten that it is open.
    fn misplaced_form(&self, at: usize) -> TemplateFault {
        self.refused(at, "a form must end where it begins, and holds no other form")
    }
}
