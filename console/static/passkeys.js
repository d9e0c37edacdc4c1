// Passkeys: the browser's own dialogue between a form and its submit. Only on the pages that have one.
(() => {
  "use strict";
  const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (char) => char.charCodeAt(0));
  const text = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  const keys = (list) => (list || []).map((one) => ({ ...one, id: bytes(one.id) }));

  function wanted(options) {
    const asked = { ...options, challenge: bytes(options.challenge) };
    if (options.user) asked.user = { ...options.user, id: bytes(options.user.id) };
    if (options.excludeCredentials) asked.excludeCredentials = keys(options.excludeCredentials);
    if (options.allowCredentials) asked.allowCredentials = keys(options.allowCredentials);
    return asked;
  }
  function told(credential) {
    const response = {};
    for (const name of ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"]) {
      if (credential.response[name]) response[name] = text(credential.response[name]);
    }
    return JSON.stringify({
      id: credential.id, rawId: text(credential.rawId), type: credential.type, response,
      authenticatorAttachment: credential.authenticatorAttachment, clientExtensionResults: credential.getClientExtensionResults(),
    });
  }
  async function options(form) {
    if (form.dataset.passkey !== "login") return JSON.parse(form.dataset.options);
    const answer = await fetch(form.action, { headers: { "X-Requested-With": "XMLHttpRequest" } });
    if (!answer.ok) throw new Error(`the console answered ${answer.status}`);
    return (await answer.json()).request_options;
  }
  async function ask(form) {
    const { publicKey } = await options(form);
    if (form.dataset.passkey !== "create") return navigator.credentials.get({ publicKey: wanted(publicKey) });
    // A passkey signs in by itself: it stays in the device and asks for its own PIN or finger.
    publicKey.authenticatorSelection = { ...publicKey.authenticatorSelection, residentKey: "required", requireResidentKey: true, userVerification: "required" };
    return navigator.credentials.create({ publicKey: wanted(publicKey) });
  }
  for (const form of document.querySelectorAll("form[data-passkey]")) {
    const said = form.querySelector(".error");
    if (!window.PublicKeyCredential) { form.hidden = true; continue; }
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      said.hidden = true;
      try {
        form.elements.credential.value = told(await ask(form));
      } catch (problem) {
        said.textContent = problem.name === "NotAllowedError" ? "Nothing was chosen, or it took too long." : `That did not work: ${problem.message || problem.name}`;
        said.hidden = false;
        return;
      }
      form.submit();
    });
  }
})();
